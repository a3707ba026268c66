"""Where C++ and Python meet: what copies, what becomes of exceptions, who owns what, who has the GIL.

The module is examples/bindings/borders.cpp; it does nothing but show these rules.
"""

from __future__ import annotations

import array
import gc
import importlib.util
import os
import pathlib
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

FOLDER = pathlib.Path(os.environ["CALLBOARD_BUILD_DIR"]) / "python" / "examples"


@pytest.fixture(scope="module")
def borders() -> Any:
    files = list(FOLDER.glob("borders.*.so"))
    assert len(files) == 1, f"{FOLDER} has {files}: build example_borders"
    spec = importlib.util.spec_from_file_location("borders", files[0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- copies -----------------------------------------------------------------------------------------------------------


def test_a_vector_argument_is_a_copy_of_lists_and_of_arrays(borders: Any) -> None:
    values = [1, 2]
    borders.add_to_list(values)
    assert values == [1, 2]
    numbers = numpy.array([1, 2], dtype=numpy.int32)
    borders.add_to_list(numbers)
    assert numbers.tolist() == [1, 2]


def test_an_array_argument_is_numpys_own_memory(borders: Any) -> None:
    numbers = numpy.array([1, 2], dtype=numpy.int32)
    borders.add_to_array(numbers)
    assert numbers.tolist() == [2, 2]
    for other in (numpy.array([1], dtype=numpy.int64), [1]):
        with pytest.raises(TypeError):  # it would have to be converted, and the caller would not see the change
            borders.add_to_array(other)


def test_a_buffer_argument_is_the_objects_own_memory(borders: Any) -> None:
    for values in (bytearray(b"\x01\x02"), array.array("B", [1, 2]), numpy.array([1, 2], dtype=numpy.uint8)):
        borders.add_to_buffer(values)
        assert values[0] == 2
    view = bytearray(b"\x01\x02\x03")
    borders.add_to_buffer(memoryview(view)[1:])
    assert bytes(view) == b"\x01\x03\x03"
    with pytest.raises((BufferError, ValueError)):
        borders.add_to_buffer(b"read only")


def test_a_large_array_comes_back_without_a_copy_and_is_freed_with_its_last_view(borders: Any) -> None:
    before = borders.living_arrays()
    numbers = borders.return_array(1_000_000)
    assert not numbers.flags.owndata
    assert type(numbers.base).__name__ == "PyCapsule"
    assert numbers[-1] == 999_999
    numbers[0] = 7  # writable: C++ keeps nothing of it
    view = numbers[500_000:]
    del numbers
    gc.collect()
    assert borders.living_arrays() == before + 1
    assert view[0] == 500_000
    del view
    gc.collect()
    assert borders.living_arrays() == before


# -- exceptions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("thrown", "raised"),
    [
        ("invalid_argument", ValueError),
        ("out_of_range", IndexError),
        ("bad_alloc", MemoryError),
        ("logic_error", RuntimeError),
        ("runtime_error", RuntimeError),
    ],
)
def test_standard_exceptions_become_pythons(borders: Any, thrown: str, raised: type[Exception]) -> None:
    with pytest.raises(raised) as caught:
        borders.throw_standard(thrown)
    assert type(caught.value) is raised
    assert thrown == "bad_alloc" or str(caught.value) == "thrown in C++"


class Custom(Exception):
    """Of Python alone."""


def raise_custom() -> None:
    raise Custom("from Python")


def test_a_callbacks_exception_is_one_in_cpp(borders: Any) -> None:
    assert borders.what_it_raised(raise_custom) == "Custom: from Python"
    assert borders.what_it_raised(lambda: None) == ""


def test_a_callbacks_exception_goes_through_cpp_frames_and_keeps_its_traceback(borders: Any) -> None:
    unwound: list[str] = []
    with pytest.raises(Custom, match="from Python") as caught:
        borders.passes_through(raise_custom, unwound)
    assert unwound == ["unwound"]
    assert caught.traceback[-1].name == "raise_custom"


def test_nothing_leaves_a_destructor(borders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: seen.append(type(args.exc_value).__name__))
    at_end = borders.AtEnd(raise_custom)
    del at_end
    gc.collect()
    assert seen == ["Custom"]


# -- ownership --------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_part_left(borders: Any) -> Iterator[None]:
    gc.collect()
    before = borders.Part.living
    yield
    gc.collect()
    assert borders.Part.living == before


@pytest.mark.usefixtures("no_part_left")
def test_a_value_is_pythons_own(borders: Any) -> None:
    whole = borders.Whole(3)
    copy = whole.copy()
    copy.number = 9
    assert whole.inner().number == 3
    del whole
    assert copy.number == 9


@pytest.mark.usefixtures("no_part_left")
def test_an_inner_reference_is_the_object_itself_and_keeps_its_whole_alive(borders: Any) -> None:
    whole = borders.Whole(3)
    inner = whole.inner()
    inner.number = 5
    assert whole.inner() is inner
    assert whole.copy().number == 5
    gone = weakref.ref(whole) if hasattr(whole, "__weakref__") else None
    before = borders.Part.living
    del whole
    gc.collect()
    assert borders.Part.living == before
    assert inner.number == 5
    assert gone is None or gone() is not None


@pytest.mark.usefixtures("no_part_left")
def test_a_shared_pointer_has_two_owners(borders: Any) -> None:
    whole = borders.Whole(3)
    shared = whole.shared()
    assert whole.shared() is shared
    shared.number = 4
    del whole
    gc.collect()
    assert shared.number == 4


@pytest.mark.usefixtures("no_part_left")
def test_a_unique_pointer_is_given_away(borders: Any) -> None:
    whole = borders.Whole(3)
    first, second = whole.given(), whole.given()
    assert first is not second
    del whole
    gc.collect()
    assert (first.number, second.number) == (3, 3)


# -- the GIL ----------------------------------------------------------------------------------------------------------


def test_a_cpp_thread_calls_back_into_python(borders: Any) -> None:
    threads: list[int] = []

    def double(value: int) -> int:
        threads.append(threading.get_ident())
        return 2 * value

    worker = borders.Worker(double)
    assert [worker.call(value) for value in range(3)] == [0, 2, 4]
    assert len(set(threads)) == 1
    assert threading.get_ident() not in threads
    assert worker.answered() == 3


def test_what_a_callback_raises_on_a_cpp_thread_reaches_the_caller(borders: Any) -> None:
    worker = borders.Worker(lambda value: 1 // value)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        worker.call(0)
    assert worker.call(1) == 1  # and the thread goes on


def test_a_worker_ends_while_its_callback_waits_for_the_gil(borders: Any) -> None:
    for _ in range(50):
        worker = borders.Worker(lambda value: value)
        caller = threading.Thread(target=worker.call, args=(1,))
        caller.start()
        caller.join(20)
        assert not caller.is_alive()
        del worker


def test_nobody_takes_the_gil_under_a_lock_that_others_take_with_the_gil(borders: Any) -> None:
    """Would hang if the worker asked for the GIL with its lock held: these threads take that lock with the GIL."""
    worker = borders.Worker(lambda value: value)
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            worker.answered()

    watching = [threading.Thread(target=look, daemon=True) for _ in range(3)]
    for thread in watching:
        thread.start()
    try:
        for value in range(300):
            assert worker.call(value) == value
    finally:
        done.set()
    for thread in watching:
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def no_forced_switch() -> Iterator[None]:
    """Python takes the GIL from no thread that does not let go of it."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("no_forced_switch")
def test_the_gil_is_let_go_before_a_cpp_lock_is_taken(borders: Any) -> None:
    """Both threads of the deadlock: the holder has the lock and asks for the GIL, this one has the GIL."""
    holder = borders.LockHolder()
    assert not holder.try_lock(release_gil_first=False, seconds=0.3)  # it would have waited for ever
    assert holder.try_lock(release_gil_first=True, seconds=20)
