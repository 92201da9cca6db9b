// Python bindings of kernels from a user's source: Python's arguments as the driver takes them.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/SmallVector.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Stream.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "bindings/bindings.h"
#include "cl/library.h"
#include "runtime/allocator.h"
#include "runtime/user_kernel.h"

namespace py = pybind11;

namespace {

using dlb::UserKernel;
using Argument = UserKernel::Argument;
using Parameter = UserKernel::Parameter;
using Kind = UserKernel::Kind;

// "saxpy: argument 'a' (float)"
std::string place(const UserKernel& kernel, const Parameter& parameter) {
  return kernel.name() + ": argument '" + parameter.name + "' (" + parameter.type + ")";
}

[[noreturn]] void wrong_type(const UserKernel& kernel, const Parameter& parameter, const char* wanted,
                             PyObject* value) {
  throw py::type_error(place(kernel, parameter) + " must be " + wanted + ", not " + Py_TYPE(value)->tp_name);
}

[[noreturn]] void overflow(const UserKernel& kernel, const Parameter& parameter, PyObject* value) {
  const std::string text = py::str(py::handle(value));
  PyErr_SetString(PyExc_OverflowError, (place(kernel, parameter) + " cannot hold " + text).c_str());
  throw py::error_already_set();
}

// A value's numbers, one after the other.
class Writer {
 public:
  Writer(const UserKernel& kernel, const Parameter& parameter, Argument& argument)
      : kernel_(kernel), parameter_(parameter), argument_(argument) {
    argument.size = 0;
  }

  void add(PyObject* value) {
    switch (parameter_.format) {
      case 'b':
        return add_integer<int8_t>(value);
      case 'B':
        return add_integer<uint8_t>(value);
      case 'h':
        return add_integer<int16_t>(value);
      case 'H':
        return add_integer<uint16_t>(value);
      case 'i':
        return add_integer<int32_t>(value);
      case 'I':
        return add_integer<uint32_t>(value);
      case 'q':
        return add_integer<int64_t>(value);
      case 'Q':
        return add_integer<uint64_t>(value);
      default:
        return add_double(as_double(value), value);
    }
  }

  void add_double(double value, PyObject* shown) {
    switch (parameter_.format) {
      case 'e':
        return add_float<c10::Half>(value, shown);
      case 'f':
        return add_float<float>(value, shown);
      default:
        return put(value);
    }
  }

  // OpenCL's vectors of three are as long as those of four.
  void finish() {
    if (parameter_.width == 3) argument_.size = argument_.size / 3 * 4;
  }

 private:
  template <class T>
  void put(T value) {
    std::memcpy(argument_.value + argument_.size, &value, sizeof value);
    argument_.size += sizeof value;
  }

  template <class T>
  void add_integer(PyObject* value) {
    if (THPVariable_Check(value) || !PyIndex_Check(value)) wrong_type(kernel_, parameter_, "an int", value);
    const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value));
    if (!index) throw py::error_already_set();
    if constexpr (std::is_same_v<T, uint64_t>) {
      const uint64_t number = PyLong_AsUnsignedLongLong(index.ptr());
      if (PyErr_Occurred()) {
        PyErr_Clear();
        overflow(kernel_, parameter_, value);
      }
      put(number);
    } else {
      int too_large = 0;
      const int64_t number = PyLong_AsLongLongAndOverflow(index.ptr(), &too_large);
      if (too_large || number < std::numeric_limits<T>::min() || number > std::numeric_limits<T>::max())
        overflow(kernel_, parameter_, value);
      put(static_cast<T>(number));
    }
  }

  double as_double(PyObject* value) {
    if (PyFloat_CheckExact(value)) return PyFloat_AS_DOUBLE(value);
    if (THPVariable_Check(value) || !PyNumber_Check(value) || PyComplex_Check(value))
      wrong_type(kernel_, parameter_, "a number", value);
    const double number = PyFloat_AsDouble(value);
    if (!PyErr_Occurred()) return number;
    if (!PyErr_ExceptionMatches(PyExc_OverflowError)) throw py::error_already_set();
    PyErr_Clear();
    overflow(kernel_, parameter_, value);
  }

  template <class T>
  void add_float(double value, PyObject* shown) {
    const T rounded = static_cast<T>(static_cast<float>(value));
    if (std::isfinite(value) && !std::isfinite(static_cast<float>(rounded)))
      overflow(kernel_, parameter_, shown);
    put(rounded);
  }

  const UserKernel& kernel_;
  const Parameter& parameter_;
  Argument& argument_;
};

bool is_sequence(PyObject* value) {
  return PyTuple_Check(value) || PyList_Check(value);
}

void set_value(const UserKernel& kernel, const Parameter& parameter, PyObject* value, Argument& argument) {
  Writer writer(kernel, parameter, argument);
  if (parameter.width == 1) {
    writer.add(value);
  } else if (is_sequence(value)) {
    const auto numbers = py::reinterpret_steal<py::object>(PySequence_Tuple(value));
    if (PyTuple_GET_SIZE(numbers.ptr()) != parameter.width)
      throw py::type_error(place(kernel, parameter) + " takes " + std::to_string(parameter.width) +
                           " numbers, not " + std::to_string(PyTuple_GET_SIZE(numbers.ptr())));
    for (uint8_t i = 0; i < parameter.width; ++i) writer.add(PyTuple_GET_ITEM(numbers.ptr(), i));
    writer.finish();
  } else if (parameter.width == 2 && PyComplex_Check(value) && strchr("efd", parameter.format)) {
    writer.add_double(PyComplex_RealAsDouble(value), value);
    writer.add_double(PyComplex_ImagAsDouble(value), value);
  } else {
    wrong_type(kernel, parameter, "a tuple of numbers", value);
  }
}

void set_local(const UserKernel& kernel, const Parameter& parameter, PyObject* value, Argument& argument) {
  // The class is Python's; other objects with an attribute of that name (arrays) are mistakes.
  if (strcmp(Py_TYPE(value)->tp_name, "LocalMemory") != 0)
    wrong_type(kernel, parameter, "torch.ocl.LocalMemory(nbytes)", value);
  static PyObject* const name = PyUnicode_InternFromString("nbytes");
  const auto bytes = py::reinterpret_steal<py::object>(PyObject_GetAttr(value, name));
  if (!bytes) throw py::error_already_set();
  argument.size = PyLong_AsSize_t(bytes.ptr());
  if (PyErr_Occurred()) throw py::error_already_set();
}

void set_argument(const UserKernel& kernel, const Parameter& parameter, PyObject* value, Argument& argument) {
  switch (parameter.kind) {
    case Kind::kLocal:
      return set_local(kernel, parameter, value, argument);
    case Kind::kValue:
      return set_value(kernel, parameter, value, argument);
    case Kind::kBuffer:
      if (THPVariable_Check(value)) return kernel.set_tensor(argument, THPVariable_Unpack(value), parameter);
      if (value != Py_None) wrong_type(kernel, parameter, "a tensor or None", value);
      argument.mem = nullptr, argument.offset = 0;
  }
}

// An int, or one to three of them; how many there were.
cl_uint read_sizes(const UserKernel& kernel, const char* what, PyObject* given,
                   std::array<size_t, 3>& sizes) {
  const auto read = [&](PyObject* value) {
    const Py_ssize_t size = PyNumber_AsSsize_t(value, PyExc_OverflowError);
    if (PyErr_Occurred()) throw py::error_already_set();
    if (size < 0) throw py::value_error(kernel.name() + ": " + what + " must not be negative");
    return static_cast<size_t>(size);
  };
  if (!is_sequence(given)) {
    sizes[0] = read(given);
    return 1;
  }
  const auto list = py::reinterpret_steal<py::object>(PySequence_Tuple(given));
  const Py_ssize_t count = PyTuple_GET_SIZE(list.ptr());
  if (count < 1 || count > 3)
    throw py::value_error(kernel.name() + ": " + what + " has one to three dimensions, not " +
                          std::to_string(count));
  for (Py_ssize_t d = 0; d < count; ++d)
    sizes[static_cast<size_t>(d)] = read(PyTuple_GET_ITEM(list.ptr(), d));
  return static_cast<cl_uint>(count);
}

UserKernel::Sizes sizes_of(const UserKernel& kernel, PyObject* global, PyObject* local) {
  UserKernel::Sizes sizes;
  sizes.dims = read_sizes(kernel, "global_size", global, sizes.global);
  if (local == Py_None) return sizes;
  sizes.has_local = true;
  if (read_sizes(kernel, "local_size", local, sizes.local) != sizes.dims)
    throw py::value_error(kernel.name() + ": local_size must have as many dimensions as global_size");
  return sizes;
}

// The stream of a launch. Memory that another stream than the current one uses is kept until that is done.
dlb::Stream& stream_of(const UserKernel& kernel, py::handle given, const py::tuple& arguments) {
  const auto index = static_cast<c10::DeviceIndex>(kernel.device().index);
  dlb::Stream& current = dlb::current_stream(index);
  if (given.is_none()) return current;
  if (!THPStream_Check(given.ptr()))
    throw py::type_error(kernel.name() + ": the stream must be a torch.ocl.Stream, not " +
                         Py_TYPE(given.ptr())->tp_name);
  const auto stream = given.cast<c10::Stream>();
  if (stream.device_type() != dlb::kDeviceType || stream.device_index() != index)
    throw py::value_error(kernel.name() + ": the stream must be of ocl:" + std::to_string(index));
  dlb::Stream& chosen = dlb::stream_of(stream);
  if (&chosen != &current)
    for (const py::handle value : arguments)
      if (THPVariable_Check(value.ptr()))
        dlb::allocator()->recordStream(THPVariable_Unpack(value.ptr()).storage().data_ptr(), stream);
  return chosen;
}

void launch(UserKernel& kernel, const py::tuple& values, py::handle global, py::handle local,
            py::handle stream) {
  const auto& parameters = kernel.parameters();
  if (values.size() != parameters.size())
    throw py::type_error(kernel.name() + " takes " + std::to_string(parameters.size()) +
                         " arguments, but there are " + std::to_string(values.size()));
  const UserKernel::Sizes sizes = sizes_of(kernel, global.ptr(), local.ptr());
  c10::SmallVector<Argument, 8> arguments(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i)
    set_argument(kernel, parameters[i], PyTuple_GET_ITEM(values.ptr(), static_cast<Py_ssize_t>(i)),
                 arguments[i]);
  dlb::Stream& queue = stream_of(kernel, stream, values);
  const py::gil_scoped_release released;
  kernel.launch(queue, sizes, {arguments.data(), arguments.size()});
}

// A parameter from (name, type, kind, dtypes, written, format, width).
Parameter parameter_of(const py::tuple& fields) {
  Parameter parameter;
  parameter.name = fields[0].cast<std::string>();
  parameter.type = fields[1].cast<std::string>();
  const auto kind = fields[2].cast<std::string>();
  parameter.kind = kind == "buffer" ? Kind::kBuffer : kind == "local" ? Kind::kLocal : Kind::kValue;
  for (const py::handle dtype : fields[3])
    parameter.dtypes |= uint64_t{1} << static_cast<int>(dtype.cast<at::ScalarType>());
  parameter.written = fields[4].cast<bool>();
  parameter.format = fields[5].cast<std::string>()[0];
  parameter.width = fields[6].cast<uint8_t>();
  return parameter;
}

std::unique_ptr<UserKernel> make(int device, const std::string& source, const std::string& options,
                                 const std::string& name, const std::vector<py::tuple>& fields) {
  std::vector<Parameter> parameters;
  parameters.reserve(fields.size());
  for (const py::tuple& each : fields) parameters.push_back(parameter_of(each));
  const py::gil_scoped_release released;
  return std::make_unique<UserKernel>(dlb::device_of(index_or_current(device)), source, options, name,
                                      std::move(parameters));
}

}  // namespace

void bind_kernels(py::module_& m) {
  py::class_<UserKernel>(m, "UserKernel")
      .def(py::init(torch::wrap_pybind_function(make)), py::arg("device"), py::arg("source"),
           py::arg("options"), py::arg("name"), py::arg("parameters"))
      .def("launch", torch::wrap_pybind_function(launch))
      .def_property_readonly("max_work_group_size",
                             [](const UserKernel& kernel) { return kernel.facts().max_group; })
      .def_property_readonly("local_memory",
                             [](const UserKernel& kernel) { return kernel.facts().local_bytes; });
}
