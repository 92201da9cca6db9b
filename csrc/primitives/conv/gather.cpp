// Convolutions as gathers.
#include "primitives/conv/gather.h"

#include <algorithm>
#include <numeric>

#include "cl/rounding.h"
#include "primitives/common/specialised.h"

namespace dlb::solver {
namespace {

// One dimension of a phase of the input gradient: input positions i = residue + stride * q take part in the
// taps f with (residue + padding - f * dilation) divisible by the stride. Ordered so that the gathered
// position rises.
struct Residue {
  int positions, taps, first, dilation;
  int last_filter, filter_step;  // filter index of tap 0, and how far it falls from tap to tap
};

Residue residue_of(const ConvProblem& p, int i, int residue) {
  const int stride = p.stride[i], common = std::gcd(stride, p.dilation[i]), filter_step = stride / common;
  Residue r{};
  r.positions = p.in[i] > residue ? static_cast<int>(ceil_div(p.in[i] - residue, stride)) : 0;
  r.dilation = p.dilation[i] / common;
  r.filter_step = filter_step;
  for (int f = 0; f < std::min(filter_step, p.filter[i]); f++) {
    if ((residue + p.padding[i] - int64_t(f) * p.dilation[i]) % stride != 0) continue;
    r.taps = (p.filter[i] - 1 - f) / filter_step + 1;
    r.last_filter = f + (r.taps - 1) * filter_step;
    r.first = static_cast<int>((residue + p.padding[i] - int64_t(r.last_filter) * p.dilation[i]) / stride);
    break;
  }
  return r;
}

Gather base(const ConvProblem& p) {
  Gather g{};
  set_bounds(g, {});
  g.n = p.n, g.groups = p.groups, g.has_bias = p.has_bias;
  g.wgroup = p.k / p.groups * p.ws[0];
  return g;
}

// The stride of a dimension of one element is never used: let it be the one that makes the whole dense, which
// the kernels have fast paths for.
void densify(Gather& g) {
  int64_t dense = 1;
  for (int i = 2; i >= 0; i--) {
    if (g.taps[i] == 1) g.wtap[i] = dense;
    dense *= g.taps[i];
  }
  if (g.red == 1) g.wred = dense;
  if (g.in[2] == 1) g.is[4] = 1;
  if (g.in[1] == 1) g.is[3] = g.in[2] * g.is[4];
  if (g.q[2] == 1) g.os[4] = 1;
  if (g.q[1] == 1) g.os[3] = g.q[2] * g.os[4];
}

Phase input_grad_phase(const ConvProblem& p, const int (&residues)[3]) {
  Phase phase{base(p), 0, 0};
  Gather& g = phase.gather;
  std::copy_n(p.ys, 5, g.is);
  g.red = p.k / p.groups, g.cols = p.c / p.groups;
  g.wcol = p.ws[1], g.wred = p.ws[0];
  g.os[0] = p.xs[0], g.os[1] = p.xs[1];
  for (int i = 0; i < 3; i++) {
    const Residue r = residue_of(p, i, residues[i]);
    g.in[i] = p.out[i], g.q[i] = r.positions, g.step[i] = 1;
    g.first[i] = r.first, g.dilation[i] = r.dilation, g.taps[i] = r.taps;
    g.os[2 + i] = p.xs[2 + i] * p.stride[i];
    g.wtap[i] = -r.filter_step * p.ws[2 + i];
    phase.weight_offset += r.last_filter * p.ws[2 + i];
    phase.output_offset += residues[i] * p.xs[2 + i];
  }
  densify(g);
  return phase;
}

}  // namespace

Phase forward_phase(const ConvProblem& p) {
  Phase phase{base(p), 0, 0};
  Gather& g = phase.gather;
  std::copy_n(p.xs, 5, g.is), std::copy_n(p.ys, 5, g.os);
  g.red = p.c / p.groups, g.cols = p.k / p.groups;
  g.wcol = p.ws[0], g.wred = p.ws[1];
  g.keeps = p.constant_w;
  for (int i = 0; i < 3; i++) {
    g.in[i] = p.in[i], g.q[i] = p.out[i], g.step[i] = p.stride[i], g.first[i] = -p.padding[i];
    g.dilation[i] = p.dilation[i], g.taps[i] = p.filter[i], g.wtap[i] = p.ws[2 + i];
  }
  densify(g);
  return phase;
}

std::vector<Phase> input_grad_phases(const ConvProblem& p) {
  std::vector<Phase> phases;
  int residues[3];
  for (residues[0] = 0; residues[0] < p.stride[0]; residues[0]++)
    for (residues[1] = 0; residues[1] < p.stride[1]; residues[1]++)
      for (residues[2] = 0; residues[2] < p.stride[2]; residues[2]++) {
        Phase phase = input_grad_phase(p, residues);
        if (phase.gather.q[0] && phase.gather.q[1] && phase.gather.q[2]) phases.push_back(phase);
      }
  return phases;
}

std::vector<Phase> phases_of(const ConvProblem& p) {
  if (p.direction == ConvDirection::kInputGrad) return input_grad_phases(p);
  return {forward_phase(p)};
}

std::string constants_of(const Gather& g) {
  Constants c;
  c.set("is", g.is), c.set("os", g.os), c.set("wgroup", g.wgroup), c.set("wcol", g.wcol),
      c.set("wred", g.wred);
  c.set("wtap", g.wtap), c.set("n", g.n), c.set("groups", g.groups), c.set("red", g.red),
      c.set("cols", g.cols);
  c.set("in", g.in), c.set("q", g.q), c.set("step", g.step), c.set("first", g.first);
  c.set("dilation", g.dilation), c.set("taps", g.taps), c.set("block", g.block);
  c.set("channels", g.channels), c.set("pitch", g.pitch), c.set("block_cols", g.block_cols);
  c.set("split", g.split), c.set("block_groups", g.block_groups), c.set("has_bias", g.has_bias);
  c.set("packs", g.packs), c.set("keeps", g.keeps);
  return c.text();
}

}  // namespace dlb::solver
