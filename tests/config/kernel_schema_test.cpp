// Schemas of Python kernels. That nothing which PyTorch reads is refused here: tests/python/test_config_schema.py.
#include "config/kernel_schema.h"

#include <string>
#include <utility>

#include "tests/support/test.h"

using namespace callboard::config;

namespace {

std::string problem_of(const std::string& schema) {
  const auto found = find_schema_problem(schema);
  return found ? found->problem + " | " + found->hint : std::string();
}

}  // namespace

TEST_CASE("schemas that a Python kernel can have") {
  for (const char* schema : {
           "my::scale(Tensor x, float factor=1.0) -> Tensor",
           "my::none() -> ()",
           "my::nothing(Tensor(a!) x, Tensor y) -> ()",
           "  my_2::f.with_3 ( Tensor x,Tensor? y=None , *, int[2] sizes=[1, 2], bool on=True)->(Tensor, Tensor)",
           "my::f(Tensor(a!)? x, Tensor?[] y, Tensor(b)[] z, SymInt[] n, Scalar s=-1.5e-3, str m=\"a, b)\") -> "
           "Tensor(a!)?",
           "my::f(Tensor(a|b) x, Tensor(a -> *) y, ScalarType? t=None, Device d='cpu', MemoryFormat m=0) -> "
           "Tensor(a)[]",
           "my::f(Tensor x, int[] n=[], float[]? w=None, complex c=1j) -> (Tensor out, int n, float x, bool y)",
       }) {
    INFO(schema);
    CHECK(problem_of(schema).empty());
  }
  CHECK(schema_operator(" my::f.with_3(Tensor x) -> Tensor") == "my::f.with_3");
  CHECK(schema_operator("my :: f (") == "my::f");
  CHECK(schema_operator("f()").empty());
}

TEST_CASE("each kind of fault in a schema is named, with what to write instead") {
  for (const auto& [schema, part] : std::initializer_list<std::pair<const char*, const char*>>{
           {"", "does not begin with an operator's name"},
           {"scale(Tensor x) -> Tensor", "names no operator with a namespace"},
           {"my::(Tensor x) -> Tensor", "names no operator behind 'my::'"},
           {"my::f. (Tensor x) -> Tensor", "names no overload"},
           {"my::f.default(Tensor x) -> Tensor", "leave it out"},
           {"aten::relu(Tensor x) -> Tensor", "takes the namespace 'aten'"},
           {"prims::f(Tensor x) -> Tensor", "takes the namespace 'prims'"},
           {"callboard_sym::f(Tensor x) -> Tensor", "takes the namespace 'callboard_sym'"},
           {"my::f", "has nothing where '(' and the arguments are expected"},
           {"my::f(Tensor", "has nothing where the name of an argument is expected"},
           {"my::f(Tensor x -> Tensor", "has '-> Tensor' where ',' or ')' is expected"},
           {"my::f(Tensor x) Tensor", "has 'Tensor' where '->' and the results are expected"},
           {"my::f(Tensor x) ->", "has nothing where a type is expected"},
           {"my::f(Tensor x) -> Tensor, Tensor", "goes on with ', Tensor' behind its results"},
           {"my::f(Tensor x,) -> Tensor", "has ') -> Tensor' where a type is expected"},
           {"my::f(tensor x) -> Tensor", "did you mean 'Tensor'?"},
           {"my::f(Tensr x) -> Tensor", "did you mean 'Tensor'?"},
           {"my::f(Dict(str, Tensor) x) -> Tensor", "has the type 'Dict', which a Python kernel cannot have"},
           {"my::f(Tensor x, Generator? g=None) -> Tensor", "has the type 'Generator'"},
           {"my::f(Tensor[][] x) -> Tensor", "list of lists"},
           {"my::f(Layout[] x) -> Tensor", "has a list of Layout"},
           {"my::f(int n=, Tensor x) -> Tensor", "has no default value behind 'n='"},
           {"my::f(int n=1, Tensor x) -> Tensor", "'x' without a default behind one that has a default"},
           {"my::f(Tensor(a! x) -> Tensor", "where an alias as in (a!) is expected"},
           {"my::f(int[2 x) -> Tensor", "where ']' is expected"},
           {"my::f(Tensor x, ...) -> Tensor", "has '...' among its arguments"},
           {"my::f(Tensor x) -> str", "returns str, which no value of a program is"},
           {"my::f(Tensor x) -> int[]", "returns int[], which no value of a program is"},
           {"my::f(Tensor x) -> (Tensor, Scalar)", "returns Scalar"},
           {"my::f(Tensor x) -> (Tensor, Tensor", "has nothing where ',' or ')' is expected"},
       }) {
    INFO(schema);
    CHECK(problem_of(schema).find(part) != std::string::npos);
  }
}

TEST_CASE("a schema cut anywhere, or with any byte in it, is judged and never read past its end") {
  const std::string whole = "my::f.o(Tensor(a!)? x, *, int[2] n=[1, 2], str m='a\\'b') -> (Tensor(a)[] y, int)";
  REQUIRE(problem_of(whole).empty());
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    find_schema_problem(std::string_view(whole).substr(0, cut));
    for (int byte = 0; byte < 256; byte += 5) {
      std::string changed = whole;
      changed[cut] = static_cast<char>(byte);
      find_schema_problem(changed);
    }
  }
  CHECK_FALSE(problem_of(whole.substr(0, whole.size() - 1)).empty());
}
