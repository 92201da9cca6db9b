// Arguments of the attention kernels.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum { ATTENTION_MOST_DIM = 256 };  // the largest head size
// Keys of one part of attention/gpu_decode.cl, at most, and its work-items.
enum { ATTENTION_PART = 512, ATTENTION_DECODE_ITEMS = 128 };
// How a bias is stored: there is none; in the type of the queries; in float, beside queries of 16 bits.
enum { ATTENTION_NO_BIAS, ATTENTION_BIAS, ATTENTION_FLOAT_BIAS };

// A tensor [batch, heads, length, dim] whose dim is contiguous: its first element and strides, in elements.
typedef struct {
  dlb_long offset, batch, head, row;
} AttentionView;
ASSERT_SIZE(AttentionView, 32);

// Forward and backward. Where `lse`, `delta` and `scores` begin, which are [batch, heads, queries, 2],
// [batch, heads, queries] and [batch, heads, queries, keys], in float and without gaps. A row's second number
// in `lse` is what rounding took from its log-sum-exp: all of the logarithm where a bias of the lowest number
// masks the row's keys.
typedef struct {
  AttentionView q, k, v, out;  // backward: out is the result's gradient
  AttentionView bias;          // `row` steps from query to query, bias_key from key to key
  AttentionView grad_q, grad_k, grad_v;
  dlb_long bias_key, lse, delta, scores;
  dlb_ulong seed, counter;  // of dropout: common/philox.clh
  dlb_int heads, group;     // query heads; how many of them share a head of keys and values
  dlb_int queries, keys, dim;
  dlb_int causal;  // query i sees the keys up to i
  dlb_int bias_kind;
  dlb_int has_scores;  // backward: whether the gradient of the scores is wanted
  float scale;
  float keep, kept_scale;  // dropout keeps with this probability and multiplies by that; keep is 1 without it
  dlb_int parts, part;     // decode: the keys in so many parts of this length
  dlb_int vector;          // rows are aligned to four elements, and a multiple of four long
} AttentionParams;
ASSERT_SIZE(AttentionParams, 360);

PARAMS_END
