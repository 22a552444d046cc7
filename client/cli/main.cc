#include <iostream>

#include "client/cli/cli.h"

int main(int argc, char** argv) {
  return oscarkv::RunCommandLine(argc, argv, std::cout, std::cerr);
}
