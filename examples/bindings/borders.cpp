// What happens where C++ and Python meet, one function for each rule: which arguments are copied, what becomes of
// exceptions, who owns what comes back, and who has the GIL. tests/python/test_borders.py shows each of them.
//
//     import borders
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace {

// -- copies ----------------------------------------------------------------------------------------------------------
// Each adds 1 to the first element of what it was given: who sees that shares the memory.

/// pybind11 makes a vector of the list (or array), element by element: the caller never sees the change.
void add_to_list(std::vector<std::int32_t> values) {
  if (!values.empty()) ++values[0];
}

/// numpy's own memory; with py::array::forcecast an array of another type would be converted, and the change lost.
void add_to_array(py::array_t<std::int32_t, py::array::c_style> values) {
  if (values.size() > 0) ++values.mutable_at(0);
}

/// Whatever offers Python's buffer protocol: bytearray, memoryview, array.array, numpy. Nothing is copied.
void add_to_buffer(const py::buffer& values) {
  const py::buffer_info info = values.request(/*writable=*/true);
  if (info.ndim != 1 || info.itemsize != 1) throw std::invalid_argument("a writable buffer of single bytes is needed");
  if (info.size > 0) ++*static_cast<std::uint8_t*>(info.ptr);
}

/// Arrays that return_array() has made and that live.
std::atomic<int> living_arrays{0};

/// `count` numbers from C++ without a copy: numpy reads memory that C++ allocated, and the capsule, which the array
/// keeps, frees it when the last view of the array has gone.
py::array_t<double> return_array(std::int64_t count) {
  if (count < 0) throw std::invalid_argument("count is negative");
  auto values = std::make_unique<std::vector<double>>(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values->size(); ++i) (*values)[i] = static_cast<double>(i);
  double* const data = values->data();
  const py::capsule owner(values.get(), [](void* pointer) {
    delete static_cast<std::vector<double>*>(pointer);
    --living_arrays;
  });
  values.release();  // the capsule has it now; before that line an exception would have freed it
  ++living_arrays;
  return py::array_t<double>(count, data, owner);
}

// -- exceptions ------------------------------------------------------------------------------------------------------

/// Throws the standard exception of that name.
void throw_standard(const std::string& name) {
  if (name == "invalid_argument") throw std::invalid_argument("thrown in C++");
  if (name == "out_of_range") throw std::out_of_range("thrown in C++");
  if (name == "bad_alloc") throw std::bad_alloc();
  if (name == "logic_error") throw std::logic_error("thrown in C++");
  throw std::runtime_error("thrown in C++");
}

/// The callback's exception is a C++ exception here, py::error_already_set: what it was, or "" if there was none.
std::string what_it_raised(const std::function<void()>& callback) {
  try {
    callback();
  } catch (py::error_already_set& raised) {
    return py::str(raised.type().attr("__name__")).cast<std::string>() + ": " +
           py::str(raised.value()).cast<std::string>();
  }
  return {};
}

/// The same exception, with its traceback, goes on to the caller; C++ frames between the two are unwound in order.
void passes_through(const std::function<void()>& callback, std::vector<std::string>& unwound) {
  struct Frame {
    std::vector<std::string>& unwound;
    ~Frame() { unwound.emplace_back("unwound"); }
  } frame{unwound};
  callback();
}

/// Ends with a callback. A destructor must not throw, so the callback's exception stops here: Python prints it as one
/// that nobody can catch (sys.unraisablehook).
class AtEnd {
 public:
  explicit AtEnd(std::function<void()> callback) : callback_(std::move(callback)) {}
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;
  ~AtEnd() {
    try {
      callback_();
    } catch (py::error_already_set& raised) {
      raised.discard_as_unraisable("the callback of AtEnd");
    }
  }

 private:
  std::function<void()> callback_;
};

// -- ownership -------------------------------------------------------------------------------------------------------

/// Counts itself, so that a test sees when one dies.
class Part {
 public:
  explicit Part(int number) : number_(number) { ++living; }
  Part(const Part& other) : number_(other.number_) { ++living; }
  Part& operator=(const Part&) = default;
  ~Part() { --living; }

  int number() const { return number_; }
  void set_number(int number) { number_ = number; }

  static inline std::atomic<int> living{0};

 private:
  int number_;
};

class Whole {
 public:
  explicit Whole(int number) : inner_(number), shared_(std::make_shared<Part>(number)) {}

  Part copy() const { return inner_; }                      ///< a value: Python gets one of its own
  Part& inner() { return inner_; }                          ///< part of this object, which must outlive it
  std::shared_ptr<Part> shared() const { return shared_; }  ///< both own it
  std::unique_ptr<Part> given() { return std::make_unique<Part>(inner_); }  ///< Python alone owns it

 private:
  Part inner_;
  std::shared_ptr<Part> shared_;
};

// -- the GIL ---------------------------------------------------------------------------------------------------------

/// A C++ thread that calls back into Python, and the thread that waits for it.
class Worker {
 public:
  explicit Worker(std::function<std::int64_t(std::int64_t)> callback) : callback_(std::move(callback)) {
    thread_ = std::thread([this] { run(); });
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Joined without the GIL: the thread may be about to ask for it. Python calls this with it.
  ~Worker() {
    const py::gil_scoped_release release;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  /// What the callback makes of `value`, on the worker's thread; what the callback raises is raised here, as a
  /// RuntimeError of its text. Waits at most ten seconds.
  std::int64_t call(std::int64_t value) {
    // Before the lock: the worker takes the lock and, without it, the GIL. Who has the GIL and waits for the lock,
    // while another one has the lock and waits for the GIL, waits for ever.
    const py::gil_scoped_release release;
    const std::lock_guard one_at_a_time(callers_);
    std::unique_lock lock(mutex_);
    task_ = value;
    changed_.notify_all();
    if (!changed_.wait_for(lock, std::chrono::seconds(10), [this] { return answer_.has_value(); })) {
      throw std::runtime_error("the worker did not answer within 10 s");
    }
    const Answer answer = *std::exchange(answer_, std::nullopt);
    if (!answer.failed.empty()) throw std::runtime_error(answer.failed);
    return answer.value;
  }

  /// How many it has answered. Keeps the GIL while it takes the lock: it is short, and right only since the worker
  /// never asks for the GIL while it has that lock. Otherwise this and the worker would wait for each other for ever.
  std::int64_t answered() {
    const std::lock_guard lock(mutex_);
    return answered_;
  }

 private:
  struct Answer {
    std::int64_t value = 0;
    std::string failed = {};
  };

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || task_.has_value(); });
      if (stopping_) return;
      const std::int64_t value = *std::exchange(task_, std::nullopt);
      lock.unlock();  // nobody takes the GIL while holding a C++ lock
      Answer answer = ask(value);
      lock.lock();
      answer_ = std::move(answer);
      ++answered_;
      changed_.notify_all();
    }
  }

  /// With the GIL, which this thread of C++ does not have by itself. What Python raised is made into text here: the
  /// exception is a Python object, and must end where the GIL is.
  Answer ask(std::int64_t value) {
    const py::gil_scoped_acquire acquire;
    try {
      return {callback_(value)};
    } catch (const py::error_already_set& raised) {
      return {0, raised.what()};
    }
  }

  std::function<std::int64_t(std::int64_t)> callback_;
  std::mutex callers_;  // one call() at a time
  std::mutex mutex_;    // of what follows
  std::condition_variable changed_;
  std::optional<std::int64_t> task_;
  std::optional<Answer> answer_;
  std::int64_t answered_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

/// The deadlock itself, with a limit to it: a thread that holds a C++ lock and asks for the GIL.
class LockHolder {
 public:
  /// Returns once the thread has the lock. The caller has the GIL all the while, so the thread has not got that.
  LockHolder() {
    auto has_lock = std::make_shared<std::promise<void>>();
    std::future<void> told = has_lock->get_future();
    thread_ = std::thread([this, has_lock] {
      const std::lock_guard lock(lock_);
      has_lock->set_value();
      const py::gil_scoped_acquire acquire;  // under a lock: what this class shows to be wrong
    });
    told.wait();
  }
  LockHolder(const LockHolder&) = delete;
  LockHolder& operator=(const LockHolder&) = delete;
  ~LockHolder() {
    const py::gil_scoped_release release;
    thread_.join();
  }

  /// Whether the lock is to be had within `seconds`, with the GIL kept or let go of first.
  bool try_lock(bool release_gil_first, double seconds) {
    std::optional<py::gil_scoped_release> release;
    if (release_gil_first) release.emplace();
    if (!lock_.try_lock_for(std::chrono::duration<double>(seconds))) return false;
    lock_.unlock();
    return true;
  }

 private:
  std::timed_mutex lock_;
  std::thread thread_;
};

}  // namespace

PYBIND11_MODULE(borders, module) {
  module.doc() = "What happens where C++ and Python meet; see examples/bindings/borders.cpp.";

  module.def("add_to_list", &add_to_list, py::arg("values"));
  module.def("add_to_array", &add_to_array, py::arg("values").noconvert());
  module.def("add_to_buffer", &add_to_buffer, py::arg("values"));
  module.def("return_array", &return_array, py::arg("count"));
  module.def("living_arrays", [] { return living_arrays.load(); });

  module.def("throw_standard", &throw_standard, py::arg("name"));
  module.def("what_it_raised", &what_it_raised, py::arg("callback"));
  module.def(
      "passes_through",
      [](const std::function<void()>& callback, py::list log) {
        std::vector<std::string> unwound;
        try {
          passes_through(callback, unwound);
        } catch (py::error_already_set&) {
          for (const std::string& frame : unwound) log.append(frame);
          throw;
        }
      },
      py::arg("callback"), py::arg("log"));
  py::class_<AtEnd>(module, "AtEnd").def(py::init<std::function<void()>>(), py::arg("callback"));

  // A class that C++ returns by shared_ptr and by unique_ptr. With a holder of std::shared_ptr, pybind11 3.0 takes a
  // unique_ptr for one and crashes; its smart_holder takes both.
  py::class_<Part, py::smart_holder>(module, "Part")
      .def(py::init<int>(), py::arg("number"))
      .def_property("number", &Part::number, &Part::set_number)
      .def_property_readonly_static("living", [](const py::object&) { return Part::living.load(); });
  py::class_<Whole>(module, "Whole")
      .def(py::init<int>(), py::arg("number"))
      .def("copy", &Whole::copy)
      .def("inner", &Whole::inner, py::return_value_policy::reference_internal)
      .def("shared", &Whole::shared)
      .def("given", &Whole::given);

  py::class_<Worker>(module, "Worker")
      .def(py::init<std::function<std::int64_t(std::int64_t)>>(), py::arg("callback"))
      .def("call", &Worker::call, py::arg("value"))
      .def("answered", &Worker::answered);
  py::class_<LockHolder>(module, "LockHolder")
      .def(py::init<>())
      .def("try_lock", &LockHolder::try_lock, py::arg("release_gil_first"), py::arg("seconds"));
}
