# Written by CMake from cmake/_build.py.in.
VERSION: str
TORCH_VERSION: str
TORCH_MINOR: str
