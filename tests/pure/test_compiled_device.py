"""Compatibility is a partial order, and each verdict says why."""

import archspec.cpu
import pytest

from tenonnx.compiled.device import Host, describe, features_of, host, known, layout_misfit, misfit, needs
from tenonnx.errors import OptionError
from tenonnx.layouts import LAYOUTS, Layout

LEVELS = ["x86_64", "x86_64_v2", "x86_64_v3", "x86_64_v4"]
Q4, Q8 = LAYOUTS["q4"], LAYOUTS["q8"]


def a_host(architecture):
    family, features = needs(architecture)
    return Host(family, architecture, features)


@pytest.mark.parametrize("here", range(4))
@pytest.mark.parametrize("made_for", range(4))
def test_a_lesser_pack_fits_a_greater_host_and_not_the_other_way_round(made_for, here):
    why = misfit(describe(LEVELS[made_for], [Q4]), a_host(LEVELS[here]))
    assert (why is None) == (made_for <= here)
    if why is not None:
        missing = sorted(needs(LEVELS[made_for])[1] - needs(LEVELS[here])[1])
        assert why == f"this host lacks {', '.join(missing)} of {LEVELS[made_for]}"


def test_avx512_on_an_avx2_host_misses_by_name():
    assert "avx512f" in misfit(describe("x86_64_v4", [Q4]), a_host("x86_64_v3"))
    assert misfit(describe("x86_64_v3", [Q4]), a_host("x86_64_v4")) is None


@pytest.mark.parametrize("architecture", ["aarch64", "power9le", "armv9.0a"])
def test_another_family_misses(architecture):
    assert f"of family {needs(architecture)[0]}" in misfit(describe(architecture, [Q4]), a_host("x86_64_v4"))


@pytest.mark.parametrize(
    "field,value,why",
    [
        ("type", "cuda", "device of type 'cuda'"),
        ("index", 1, "cpu number 1 alone"),
        ("runtime", "other", "runtime 'other'"),
        ("runtime_version", "2", "version '2'"),
        ("architecture", "sm_80", "'sm_80' is not known"),
        ("architecture", "", "'' is not known"),
    ],
)
def test_each_field_must_fit(field, value, why):
    device = describe("x86_64", [Q4])
    setattr(device, field, value)
    assert why in misfit(device, a_host("x86_64_v3"))


def test_index_0_is_this_cpu():
    device = describe("x86_64", [Q4])
    device.index = 0
    assert misfit(device, a_host("x86_64")) is None


def test_metadata_that_is_not_known_is_needed_all_the_same():
    device = describe("x86_64", [Q4])
    device.metadata_props.add(key="huge_pages", value="1")
    assert "huge_pages = '1'" in misfit(device, a_host("x86_64_v4"))


def test_named_features_are_needed():
    device = describe("x86_64_v3", [Layout("q4", 32, 160, True, features=("avx2", "avx512_vnni"))])
    assert [(entry.key, entry.value) for entry in device.metadata_props] == [("features", "avx512_vnni"), ("layout.q4", "1")]
    assert misfit(device, a_host("x86_64_v4")) == "this host lacks avx512_vnni of x86_64_v3"
    vnni = Host("x86_64", "x86_64_v4", needs("x86_64_v4")[1] | {"avx512_vnni"})
    assert misfit(device, vnni) is None


def test_features_may_stand_in_the_architecture():
    assert known("x86_64-avx2") and "avx2" in features_of(describe("x86_64-avx2", [Q4]))
    assert misfit(describe("x86_64-avx2", [Q4]), a_host("x86_64_v3")) is None
    assert "avx2" in misfit(describe("x86_64-avx2", [Q4]), a_host("x86_64_v2"))


@pytest.mark.parametrize("architecture", ["i386x", "x86_64-", "x86_64-../../x", "x86_64/", "X86_64\0", "", "-avx2", "avx2"])
def test_an_unknown_architecture_is_refused(architecture):
    with pytest.raises(OptionError, match="not known"):
        describe(architecture, [Q4])


def test_the_runtime_may_go_up_and_down_again():
    device = describe("x86_64", [Q4, Q8])
    newer = Layout("q4", 32, 160, True, version=2)
    assert layout_misfit(device, newer) == "its layout is q4.1, this runtime's is q4.2"
    assert layout_misfit(describe("x86_64", [newer]), Q4) == "its layout is q4.2, this runtime's is q4.1"
    assert layout_misfit(device, Q4) is layout_misfit(device, Q8) is None
    assert layout_misfit(device, LAYOUTS["f16"]) == "its device names no layout f16"


def test_auto_is_the_least_architecture_that_reads_the_layouts():
    here = host()
    assert describe("auto", [Q4, Q8]).architecture == here.family
    if {"avx2", "fma", "f16c"} <= here.features:
        wide = describe("auto", [Layout("q4", 32, 160, True, features=("avx2",))])
        assert wide.architecture == "x86_64_v3" and misfit(wide, here) is None


def test_this_host_fits_what_archspec_calls_it():
    here = host()
    assert misfit(describe(here.architecture, [Q4]), here) is None
    assert here.family == str(archspec.cpu.host().family)
