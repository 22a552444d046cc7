#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/table.h"
#include "client/recording/recording.h"

namespace oscarkv {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson ToJson(const RecordedTensor& tensor) {
  return {{"dtype", NameOf(tensor.dtype)}, {"shape", {tensor.tokens, tensor.heads, tensor.dim}}};
}

OrderedJson ToJson(const RecordedLayer& layer) {
  OrderedJson json = {{"layer", layer.layer}, {"begin", layer.begin}, {"scale", layer.scale}};
  json["sliding_window"] = layer.sliding_window ? OrderedJson(*layer.sliding_window) : nullptr;
  json["softcap"] = layer.softcap ? OrderedJson(*layer.softcap) : nullptr;
  json["sink_logits"] = layer.sink_logits;
  json["key"] = ToJson(layer.key);
  json["value"] = ToJson(layer.value);
  json["query"] = layer.has_queries() ? ToJson(layer.query) : OrderedJson(nullptr);
  json["query_heads"] = layer.query.heads;
  return json;
}

void PrintText(std::ostream& out, const Recording& recording) {
  out << "model:    " << recording.model() << "\n"
      << "origin:   " << recording.origin() << "\n"
      << "license:  " << recording.license() << "\n\n";
  Table table({"layer", "from", "tokens", "heads", "dims", "key", "value", "query", "scale",
               "window", "softcap", "sinks", "keys and values"});
  for (const RecordedLayer& layer : recording.layers()) {
    table.AddRow(
        {absl::StrCat(layer.layer), absl::StrCat(layer.begin), absl::StrCat(layer.tokens()),
         absl::StrCat(layer.query.heads, "/", layer.key.heads),
         absl::StrCat(layer.key.dim, "/", layer.value.dim), NameOf(layer.key.dtype),
         NameOf(layer.value.dtype), layer.has_queries() ? NameOf(layer.query.dtype) : "-",
         absl::StrCat(layer.scale),
         layer.sliding_window ? absl::StrCat(*layer.sliding_window) : "-",
         layer.softcap ? absl::StrCat(*layer.softcap) : "-", absl::StrCat(layer.sink_logits.size()),
         FormatBytes(
             static_cast<std::int64_t>(layer.key.bytes.size() + layer.value.bytes.size()))});
  }
  table.Print(out);
}

absl::Status RunInspect(const CommandContext& context, const std::string& path) {
  const auto recording = Recording::Open(path);
  if (!recording.ok()) return recording.status();
  if (!context.json) {
    PrintText(context.out, *recording);
    return absl::OkStatus();
  }
  OrderedJson json = {{"model", recording->model()},
                      {"origin", recording->origin()},
                      {"license", recording->license()},
                      {"layers", OrderedJson::array()}};
  for (const RecordedLayer& layer : recording->layers()) json["layers"].push_back(ToJson(layer));
  context.out << json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
  return absl::OkStatus();
}

}  // namespace

void AddInspectCommand(CLI::App& app, CommandContext& context) {
  CLI::App& command = *app.add_subcommand("inspect", "Check a recording and show what it holds");
  const auto* file =
      command.add_option("file", "Recording (.safetensors)")->type_name("FILE")->required();
  AddJsonFlag(command, context);
  command.callback([&context, file] {
    context.run = [&context, path = file->as<std::string>()] { return RunInspect(context, path); };
  });
}

}  // namespace oscarkv
