// Programs and graph fragments: flat lists of operator calls over numbered values. Plain data; graph_check.h says what
// a valid one is, codec.h how it travels.
#pragma once

#include <complex>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "messages/base/ids.h"
#include "messages/symbol.h"
#include "messages/tensor_handle.h"
#include "messages/tensor_meta.h"

namespace callboard {

/// Number of a value within its program. A fragment keeps the numbers of its program.
using ValueId = std::uint32_t;
constexpr ValueId kNoValue = UINT32_MAX;

/// Version of this schema. A reader refuses any other with kVersionMismatch and both numbers.
constexpr std::uint32_t kGraphSchemaVersion = 1;

// -- arguments: every kind is tagged, so that 1, 1.0, true and "1" stay distinct
// ------------------------------------------

struct ArgNone {
  bool operator==(const ArgNone&) const = default;
};
struct ArgValue {
  ValueId value = kNoValue;
  bool operator==(const ArgValue&) const = default;
};  ///< a tensor, or a number made by a node
struct ArgValueList {
  std::vector<ValueId> values;
  bool operator==(const ArgValueList&) const = default;
};  ///< Tensor[]
struct ArgOptionalValueList {
  std::vector<ValueId> values;
  bool operator==(const ArgOptionalValueList&) const = default;
};  ///< Tensor?[]; kNoValue is a hole
struct ArgSymbol {
  Expr expr;
  bool operator==(const ArgSymbol&) const = default;
};  ///< SymInt
struct ArgIntList {
  std::vector<Expr> items;
  bool operator==(const ArgIntList&) const = default;
};  ///< int[] or SymInt[]; constants are one-term expressions
struct ArgFloatList {
  std::vector<double> items;
  bool operator==(const ArgFloatList&) const = default;
};
struct ArgBoolList {
  std::vector<bool> items;
  bool operator==(const ArgBoolList&) const = default;
};
struct ArgStringList {
  std::vector<std::string> items;
  bool operator==(const ArgStringList&) const = default;
};
struct ArgDType {
  DType dtype = DType::kUndefined;
  bool operator==(const ArgDType&) const = default;
};
struct ArgLayout {
  std::string name;
  bool operator==(const ArgLayout&) const = default;
};  ///< "strided", "sparse_coo", …
struct ArgMemoryFormat {
  std::string name;
  bool operator==(const ArgMemoryFormat&) const = default;
};  ///< "contiguous_format", "channels_last", …
struct ArgDeviceSlot {
  std::uint32_t slot = 0;
  bool operator==(const ArgDeviceSlot&) const = default;
};  ///< 0: the device that the node is placed on. Never a literal device
/// A device as the exporter found it ("cpu", "cuda:1"). Decodes, so that the refusal (kLiteralDevice) can name the
/// node.
struct ArgLiteralDevice {
  std::string name;
  bool operator==(const ArgLiteralDevice&) const = default;
};
/// A Scalar (number) parameter; a number keeps its kind.
struct ArgScalar {
  std::variant<bool, std::int64_t, double, std::complex<double>> value;
  bool operator==(const ArgScalar&) const = default;
};

using ArgumentVariant =
    std::variant<ArgNone, ArgValue, ArgValueList, ArgOptionalValueList, bool, std::int64_t, ArgSymbol, double,
                 std::complex<double>, std::string, ArgDType, ArgLayout, ArgMemoryFormat, ArgDeviceSlot,
                 ArgLiteralDevice, ArgIntList, ArgFloatList, ArgBoolList, ArgStringList, ArgScalar>;
/// A variant (get_if, holds_alternative and visit work on it) whose copies, moves and comparison are compiled once, in
/// graph.cpp, as those of Message and for the same reason.
class Argument : public ArgumentVariant {
 public:
  Argument();
  /// From any of its alternatives; instantiated in graph.cpp.
  template <class T>
  requires(!std::is_same_v<T, Argument>) Argument(T value);  // NOLINT(google-explicit-constructor)
  Argument(const Argument& other);
  Argument(Argument&& other) noexcept;
  Argument& operator=(const Argument& other);
  Argument& operator=(Argument&& other) noexcept;
  ~Argument();
  friend bool operator==(const Argument& a, const Argument& b);
};

// -- values
// -------------------------------------------------------------------------------------------------------------

enum class ValueKind : std::uint8_t { kTensor = 0, kInt = 1, kFloat = 2, kBool = 3, kNone = 4 };

/// "tensor", "int", "float", "bool" or "none".
std::string_view value_kind_name(ValueKind kind);
/// For sentences: "a tensor", "an int", "a float", "a bool" or "None".
std::string_view value_kind_phrase(ValueKind kind);

/// What is declared about a value; checked against what the kernel made (step 5 of Kernel::run) and against inputs at
/// submit. For a tensor, `dtype` kUndefined or no `sizes` mean "anything".
struct ValueSpec {
  std::string name;  ///< for people: the exporter's node name, an input's name
  ValueKind kind = ValueKind::kTensor;
  DType dtype = DType::kUndefined;
  std::optional<std::vector<Expr>> sizes;
  bool operator==(const ValueSpec&) const = default;
};

// -- nodes
// ----------------------------------------------------------------------------------------------------------------

/// One output position of an operator: nothing (unused or None), one value, or a list of values (Tensor[]).
struct NodeOutput {
  bool is_list = false;
  std::vector<ValueId>
      values;  ///< not a list: exactly one, kNoValue if unused. List: any number, kNoValue where unused
  bool operator==(const NodeOutput&) const = default;
};

/// One operator call. Operators are named "namespace::name.overload" ("namespace::name" where the overload is empty).
/// Primitive operators of our own, known to every device without LibTorch's dispatcher:
///   callboard_sym::size(Tensor, int dim), and on integers
///   callboard_sym::{add,sub,mul,floordiv,mod,min,max,eq,ne,lt,le,gt,ge,not,neg}; callboard_sym::assert(bool, str
///   message) fails the run with kBadInput.
struct Node {
  std::string op;
  std::vector<Argument> args;                            ///< in the schema's order
  std::vector<std::pair<std::string, Argument>> kwargs;  ///< the rest, by the schema's names
  std::vector<NodeOutput> outputs;
  std::string name;         ///< the exporter's name, "linear_3"
  std::string module_path;  ///< "encoder.layer.0.attention"; for placement by prefix and for error messages
  std::string source;       ///< "model.py:12 in forward: x = …"; may be empty
  double cost = 0;          ///< the exporter's estimate, floating-point operations plus bytes touched; 0 is "unknown"
  bool operator==(const Node&) const = default;
};

// -- programs
// -------------------------------------------------------------------------------------------------------------

struct ProgramInput {
  std::string name;
  ValueId value = kNoValue;
  bool operator==(const ProgramInput&) const = default;
};

/// A parameter, buffer or constant. Storages are content-addressed: tied weights and views name the same `storage`.
struct Constant {
  std::string name;  ///< fully qualified, "encoder.layer.0.weight"
  ValueId value = kNoValue;
  ContentHash storage;  ///< SHA-256 of the whole storage's bytes
  std::uint64_t storage_bytes = 0;
  TensorMeta meta;  ///< offset and strides within that storage
  bool requires_grad =
      false;  ///< as it was in the module: some kernels (matmul) choose another path by it, also without gradients
  bool operator==(const Constant&) const = default;
};

/// A buffer that the program changes. It stays on its device between runs: a run reads `before`, and if it succeeds
/// `after` is what the next run reads. Starts from the constant `initial`.
struct State {
  std::string name;
  ValueId before = kNoValue;
  ValueId after = kNoValue;
  std::uint32_t initial = 0;  ///< index into constants (whose value is `before`)
  bool operator==(const State&) const = default;
};

/// One flat output of a program: a value, or a number or None that is known already.
struct ProgramOutput {
  std::string name;
  std::variant<ArgNone, ArgValue, bool, std::int64_t, double, std::string, ArgSymbol> source;
  bool operator==(const ProgramOutput&) const = default;
};

/// A whole program before it is split over devices. Nodes are in topological order; each value is defined once (by an
/// input, a constant or a node).
struct ProgramGraph {
  std::uint32_t schema_version = kGraphSchemaVersion;
  std::string name;
  std::vector<SymbolSpec> symbols;
  std::vector<ValueSpec> values;
  std::vector<ProgramInput> inputs;
  std::vector<Constant> constants;
  std::vector<State> states;
  std::vector<Node> nodes;
  std::vector<ProgramOutput> outputs;
  std::map<std::string, std::string>
      annotations;  ///< for clients: pytree structure of inputs and outputs, exporter versions; opaque to the cluster
  bool operator==(const ProgramGraph&) const = default;
};

/// Where a node goes. Node ranges beat prefixes, a longer prefix beats a shorter one, whatever the rules' order; nodes
/// that no rule matches follow the node before them (the first ones follow the first matched). Without rules:
/// `automatic`.
struct Placement {
  struct Rule {
    std::string device;  ///< "cpu0"
    std::vector<std::string>
        module_prefixes;  ///< "encoder.layer.0" matches it and what is below it, not "encoder.layer.01"
    std::vector<std::pair<std::uint32_t, std::uint32_t>> node_ranges;  ///< [first, last] node indices
    bool operator==(const Rule&) const = default;
  };
  bool automatic = true;
  std::vector<std::string> devices;  ///< automatic: over these, in this order; empty is all. One name: everything there
  std::vector<Rule> rules;
  bool operator==(const Placement&) const = default;
};

// -- fragments
// --------------------------------------------------------------------------------------------------------------

/// Where a fragment's input comes from.
struct FragmentInput {
  enum class Source : std::uint8_t { kProgramInput = 0, kEdge = 1 };
  ValueId value = kNoValue;
  Source source = Source::kProgramInput;
  std::uint32_t index = 0;  ///< program input number, or index of the producing fragment
  bool operator==(const FragmentInput&) const = default;
};

/// Where a fragment's output goes: to the client, to other fragments, or both.
struct FragmentOutput {
  struct Edge {
    std::uint32_t fragment = 0;  ///< consuming fragment
    std::string device;          ///< and the device it is on
    bool operator==(const Edge&) const = default;
  };
  ValueId value = kNoValue;
  bool to_client = false;
  std::vector<Edge> edges;
  bool operator==(const FragmentOutput&) const = default;
};

/// A part of a program for one device, as the planner makes it.
struct Fragment {
  std::uint32_t schema_version = kGraphSchemaVersion;
  ContentHash program;
  std::uint32_t index = 0;  ///< within the program; edges only go to higher indices
  std::string device;
  std::vector<SymbolSpec> symbols;
  std::map<ValueId, ValueSpec> values;  ///< those that occur in this fragment
  std::vector<FragmentInput> inputs;
  std::vector<Constant> constants;
  std::vector<State> states;            ///< `initial` indexes this fragment's constants
  std::vector<std::uint32_t> node_ids;  ///< number of each node within its program (for errors, traces and plans)
  std::vector<Node> nodes;
  std::vector<FragmentOutput> outputs;
  std::vector<std::vector<ValueId>>
      frees;  ///< frees[i]: values whose last reader is node i; they are dropped right after it
  bool operator==(const Fragment&) const = default;
};

}  // namespace callboard

template <>
struct std::variant_size<callboard::Argument> : std::variant_size<callboard::ArgumentVariant> {};
