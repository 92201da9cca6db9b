#include "solver/config.h"

namespace dlb::solver {

std::string config_text(const Config& config) {
  std::string text = config.specialised ? "s" : "";
  for (size_t i = 0; i < Config::kValues; i++) text += (i ? "," : "") + std::to_string(config.values[i]);
  return text;
}

std::string describe(const Config& config, ConfigNames names) {
  std::string text = config.specialised ? "specialised" : "";
  for (size_t i = 0; i < names.count; i++)
    text += (text.empty() ? "" : " ") + std::string(names.names[i]) + "=" + std::to_string(config.values[i]);
  return text.empty() ? "-" : text;
}

}  // namespace dlb::solver
