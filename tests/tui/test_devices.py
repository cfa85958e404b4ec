"""GPUs through NVML (a fake one here), the machine's memory, and what each job has left."""

from dataclasses import replace

import pytest
from helpers.nvml import FakeGpu, FakeNvml

from keras_mp.telemetry.records import Memory
from tui.devices import NO_DEVICES, DeviceReader, Devices, Gpu, Machine
from tui.room import gpu_of, others, room, scarce

GB = 10**9


@pytest.fixture
def root(tmp_path):
    """Files as Linux has them: 16 GB in all, 4 GB available."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(
        "MemTotal:       15625000 kB\nMemFree:        1000000 kB\nMemAvailable:    3906250 kB\n"
    )
    (tmp_path / "proc/stat").write_text("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 1 1 1\n")
    return tmp_path


def no_nvml():
    raise ImportError("No module named 'pynvml'")


def test_what_nvml_says_is_told_in_people_s_units():
    nvml = FakeNvml(FakeGpu(processes={1001: 38 * GB, 7: None}), FakeGpu(name="NVIDIA L4"))
    first, second = DeviceReader(nvml).read(100.0).gpus
    assert (first.index, first.name, first.used, first.total) == (
        *(0, "NVIDIA H200", 61_200_000_000, 141_000_000_000),
    )
    assert (first.utilisation, first.temperature, first.power) == (0.87, 61, 412.0)
    assert first.processes == {1001: 38 * GB, 7: None}
    assert second.name == "NVIDIA L4"


def test_what_a_card_cannot_tell_is_unknown_and_not_zero():
    gpu = FakeGpu(used=None, busy=None, temperature=None, milliwatts=None, processes={3: 2**64 - 1})
    (told,) = DeviceReader(FakeNvml(gpu)).read(100.0).gpus
    assert (told.used, told.total, told.utilisation) == (None, None, None)
    assert (told.temperature, told.power) == (None, None)
    assert told.processes == {3: None}, "NVML's word for 'not available'"
    assert told.history["used"].tolist() == pytest.approx([float("nan")], nan_ok=True)


@pytest.mark.parametrize(
    ("nvml", "words"),
    [
        (no_nvml, "nvidia-ml-py is not installed"),
        (FakeNvml(broken="NVML Shared Library Not Found"), "NVML Shared Library Not Found"),
        (FakeNvml(), "it knows no GPU"),
    ],
)
def test_without_a_gpu_it_says_why(nvml, words):
    devices = DeviceReader(nvml).read(100.0)
    assert devices.gpus == ()
    assert words in devices.reason


def test_a_lost_gpu_leaves_the_others_their_numbers():
    gpus = FakeGpu(lost=True), FakeGpu(name="NVIDIA L4"), FakeGpu(name="NVIDIA T4")
    told = DeviceReader(FakeNvml(*gpus)).read(100.0).gpus
    assert [(gpu.index, gpu.name) for gpu in told] == [(1, "NVIDIA L4"), (2, "NVIDIA T4")]


def test_what_the_package_cannot_decode_or_lacks_does_not_end_the_watch(runs):
    class Old(FakeNvml):
        nvmlDeviceGetPowerUsage = property()  # an older package has no such function

        def nvmlDeviceGetName(self, gpu):
            return b"NVIDIA \xff".decode()  # as nvidia-ml-py does, on some cards' names

    reader = DeviceReader(Old(FakeGpu()))
    (gpu,) = reader.read(100.0).gpus
    assert (gpu.name, gpu.power, gpu.temperature) == ("GPU", None, 61)
    reader.close()

    class Broken(FakeNvml):
        def nvmlInit(self):
            raise OSError("libnvidia-ml.so.1: file too short")

    snapshot = runs.add("float32").app(devices=DeviceReader(Broken())).reader.look(None)
    assert [job.name for job in snapshot.jobs] == ["float32"]
    assert "file too short" in snapshot.devices.reason


def test_nvml_is_asked_once_a_second_at_most():
    nvml = FakeNvml(FakeGpu())
    reader = DeviceReader(nvml)
    for tenth in range(30):
        reader.read(100.0 + tenth / 10)
    assert nvml.calls == 3


def test_a_driver_that_is_loaded_later_is_found():
    nvml = FakeNvml(FakeGpu(), broken="Driver Not Loaded")
    reader = DeviceReader(nvml)
    assert reader.read(100.0).reason
    nvml.broken = None
    assert reader.read(101.5).reason, "not asked again at once"
    found = reader.read(200.0)
    assert len(found.gpus) == 1
    assert found.reason == ""
    reader.close()
    assert not nvml.open


def test_ten_minutes_are_remembered():
    nvml = FakeNvml(FakeGpu(total=100, used=50, busy=10))
    reader = DeviceReader(nvml)
    for second in range(700):
        nvml.gpus[0].busy = second % 100
        gpu = reader.read(100.0 + second).gpus[0]
    assert len(gpu.history) == 600
    assert gpu.history["time"][-1] == 799.0
    assert gpu.history["utilisation"][-1] == 0.99
    assert gpu.history["used"].tolist() == [0.5] * 600


def test_the_machine_s_memory_and_processors(root):
    reader = DeviceReader(no_nvml, root)
    first = reader.read(100.0).machine
    assert (first.total, first.used) == (16 * GB, 12 * GB)
    assert first.utilisation is None, "a share needs two readings"
    (root / "proc/stat").write_text("cpu  175 0 100 825 0 0 0 0 0 0\n")
    assert reader.read(102.0).machine.utilisation == 0.75


def test_in_a_container_its_own_limit_counts(root):
    group = root / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("8000000000\n")
    (group / "memory.current").write_text("6000000000\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 1000000000\n")
    machine = DeviceReader(no_nvml, root).read(100.0).machine
    assert (machine.total, machine.used) == (8 * GB, 5 * GB)
    (group / "memory.max").write_text("max\n")
    assert DeviceReader(no_nvml, root).read(100.0).machine.total == 16 * GB


def test_a_system_without_proc_knows_nothing(tmp_path):
    machine = DeviceReader(no_nvml, tmp_path).read(100.0).machine
    assert (machine.total, machine.used, machine.utilisation) == (None, None, None)


# What a job has left.

NOW = Memory(step=1, time=0.0, device_allocated=10 * GB, device_peak=30 * GB, device_total=80 * GB)


@pytest.fixture
def job(runs):
    """A job of this machine that is running."""
    (job,) = runs.add("killed").app().reader.look(None).jobs
    return replace(job, memory=NOW, pids=frozenset({1001}))


def on(job, **gpu):
    return Devices(
        gpus=(Gpu(0, "H200", **{"total": 100 * GB, "used": 50 * GB} | gpu),), host=job.meta.host
    )


def test_room_is_what_is_left_above_the_peak_and_the_others(job):
    devices = on(job, processes={1001: 40 * GB, 5: 10 * GB})
    assert room(job, job.pids, devices) == (100 * GB - 30 * GB - 10 * GB, 100 * GB)
    assert others(devices.gpus[0], job.pids) == 10 * GB


def test_memory_that_tensorflow_reserved_for_the_job_is_still_its_room(job):
    devices = on(job, used=95 * GB, processes={1001: 95 * GB})
    assert room(job, job.pids, devices) == (70 * GB, 100 * GB)


def test_a_job_is_found_by_its_pid_on_its_own_host_alone(job):
    devices = on(job, processes={1001: 40 * GB})
    assert gpu_of(job, job.pids, devices) is devices.gpus[0]
    assert gpu_of(job, frozenset({1002}), devices) is None
    elsewhere = replace(devices, host="another")
    assert gpu_of(job, job.pids, elsewhere) is None
    assert room(job, job.pids, elsewhere) == (50 * GB, 80 * GB), "by what the job itself tells"


def test_without_any_reading_room_is_unknown(job):
    bare = replace(job, memory=replace(NOW, device_total=None))
    assert room(bare, job.pids, NO_DEVICES) == (None, None)
    assert room(replace(job, memory=None), job.pids, on(job)) == (None, None)


def test_on_a_cpu_it_is_what_the_machine_has_available(job):
    cpu = replace(job, memory=Memory(step=1, time=0.0, process_resident=GB))
    machine = Machine(used=12 * GB, total=16 * GB)
    here = Devices(machine=machine, host=job.meta.host)
    assert room(cpu, job.pids, here) == (4 * GB, 16 * GB)
    assert room(cpu, job.pids, replace(here, host="another")) == (None, None)


def test_below_a_twentieth_it_is_scarce():
    assert scarce(4, 100)
    assert not scarce(5, 100)
    assert not scarce(None, 100)
    assert not scarce(None, None)
