// A session of one layer: appends a context of 300 tokens, asks one query, deletes the session.
#include <cstdio>

#include "client/client.h"
#include "client/tensors.h"

int main(int argc, char** argv) {
  auto client = oscarkv::Client::Connect(argc > 1 ? argv[1] : "127.0.0.1:50051").value();
  oscarkv::v1::CreateSessionRequest create;
  create.set_session("quickstart");
  oscarkv::v1::LayerSpec& layer = *create.add_layers();
  layer.set_query_heads(8);
  layer.set_kv_heads(2);
  layer.set_key_dim(64);
  const oscarkv::v1::Session session = client->CreateSession(create).value();

  oscarkv::v1::AttendRequest request;  // one call: the tokens are appended, then attended to
  oscarkv::v1::Item& item = *request.add_items();
  item.set_session(session.id());
  item.set_generation(session.generation());
  item.set_num_tokens(300);
  item.set_expected_length(0);
  item.set_num_query_tokens(1);
  *request.mutable_key() =
      oscarkv::MakeTensor({300, 2, 64}, std::vector<float>(300 * 2 * 64, 0.5f));
  *request.mutable_value() = oscarkv::MakeTensor({300, 2, 64}, std::vector<float>(300 * 2 * 64, 2));
  *request.mutable_query() = oscarkv::MakeTensor({1, 8, 64}, std::vector<float>(8 * 64, 0.1f));
  const oscarkv::v1::AttendResponse response = client->Attend(request).value();
  const auto output = oscarkv::ViewFloats(response.output()).value();  // [1, 8, 64]
  std::printf("%ld tokens, output[0] = %g\n", static_cast<long>(response.results(0).length()),
              static_cast<double>(output[0]));
  return client->DeleteSession(session.id()).ok() ? 0 : 1;
}
