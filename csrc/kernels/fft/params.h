// Arguments of the Fourier transforms' kernels. Offsets and strides count real numbers, of which a complex
// number is two.
#pragma once
#include "kernels/common/params.h"

PARAMS_BEGIN

enum { FFT_BATCH_DIMS = 5, FFT_MOST_PASSES = 16 };

// The steps of a tile besides the passes (fft/stockham.cl), and those of copies (fft/edges.cl).
enum {
  FFT_SWAP_IN = 1,          // real and imaginary parts change places: an inverse transform is a forward one
  FFT_SWAP_OUT = 2,         // between two such swaps
  FFT_PACK = 4,             // half a spectrum of real numbers becomes a spectrum of pairs of them
  FFT_UNPACK = 8,           // and back
  FFT_HERMITIAN = 16,       // the second half of the spectrum is the first one's mirror image: on loading
  FFT_MIRROR = 32,          // and on storing
  FFT_CHIRP = 64,           // Bluestein's algorithm
  FFT_FILL = 256,           // numbers from in_count on are zeros
  FFT_STEPS = 128,          // times the roots of unity between the steps of a longer transform,
  FFT_STEPS_OF_BATCH = 512  // whose column is the first batch index, not the place across the tile
};

// Where the numbers of a batch of transforms lie. Batch indices count from 0, the first dimension fastest.
typedef struct {
  dlb_long offset, step;  // of the first number; from one number of a transform to the next
  dlb_long im;            // from a real part to its imaginary part; 0: there is none
  dlb_long lane;          // from one transform of a tile to the next
  dlb_long batch[FFT_BATCH_DIMS];
} FftView;
ASSERT_SIZE(FftView, 72);

typedef struct {
  FftView in, out;
  dlb_ulong radices;                               // four bits for each pass, the first lowest
  dlb_long twiddle, real, chirp, spectrum, steps;  // where the tables begin
  dlb_int sizes[FFT_BATCH_DIMS];                   // of the batch; the last is not looked at
  dlb_int first;                                   // the batch index that the first tile belongs to
  dlb_int lanes, blocks;                           // transforms side by side, and how many tiles they fill
  dlb_int tiles, per_item;                         // in all, and those of a CPU's work-item
  dlb_int n, points;                               // of the passes, and of the transform: less by Bluestein's algorithm
  dlb_int in_count, out_count;                     // numbers loaded and stored
  dlb_int capacity;                                // numbers of a transform that a tile has room for
  dlb_int passes, flags;
  dlb_int width;        // GPUs: the logarithm to 2 of a tile's lanes
  dlb_int step_bits;    // roots between steps: log2 of those in the finer table
  dlb_int step_points;  // the length of the longer transform
} FftTiles;
ASSERT_SIZE(FftTiles, 272);

// A walk over all numbers of a batch.
typedef struct {
  FftView in, out;
  dlb_long table;
  dlb_int sizes[FFT_BATCH_DIMS];
  dlb_int first, transforms;
  dlb_int points, count;  // numbers that there are, and that are stored: zeros beyond
  dlb_int flags, use_table;
  dlb_int per_item;  // numbers of a CPU's work-item
} FftEdge;
ASSERT_SIZE(FftEdge, 200);

PARAMS_END
