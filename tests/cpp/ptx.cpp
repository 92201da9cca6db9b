// cl/ptx.h: instructions for sm_90a come out of their comments, and nothing else changes.
#include "cl/ptx.h"

#include <doctest/doctest.h>

TEST_CASE("what is marked becomes an instruction of sm_90a") {
  const std::string ptx =
      "// made by a compiler\n.version 9.0\n.target sm_90, texmode_independent\n\t//@wgmma.fence;\n// "
      "kept\n\t//@a;//@b;\n";
  CHECK(dlb::cl::with_sm90a(ptx) ==
        "// made by a compiler\n.version 9.0\n.target sm_90a, texmode_independent\n\twgmma.fence;\n// "
        "kept\n\ta;b;\n");
}

TEST_CASE("PTX of other targets, and what is not PTX, is refused") {
  for (const char* text : {"", ".target sm_80\n//@a;", ".target sm_90", ".target sm_900\n",
                           "\x7f"
                           "ELF"})
    CHECK(dlb::cl::with_sm90a(text).empty());
}

TEST_CASE("only sources with marks are built twice") {
  CHECK(dlb::cl::needs_sm90a("asm volatile(\"//@a;\");"));
  CHECK_FALSE(dlb::cl::needs_sm90a("// a comment\nkernel void k() {}"));
}
