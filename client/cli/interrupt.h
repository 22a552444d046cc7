// Ctrl-C as a question that long work asks itself now and then.
#pragma once

namespace oscarkv {

// From now on a first SIGINT or SIGTERM only makes Interrupted() true; a second one ends the
// process as usual.
void CatchInterrupts();
bool Interrupted();

}  // namespace oscarkv
