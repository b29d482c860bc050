"""Domains: who gets which samples, the embedded three, the layouts of FedBN, pickles from outside, resizing."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from robustfl.data import (
    Digits,
    DigitsDomain,
    DigitsFedBN,
    DirichletSizes,
    DomainNet,
    Normalize,
    OfficeCaltech,
    Resized,
    dataset_from_spec,
    domain_split,
    normalize,
)
from robustfl.data.fedbn import read_pickle
from robustfl.errors import DataMissing, Refused, UsageError
from robustfl.randomness import numpy_stream
from robustfl.registry import identity
from robustfl.scenarios import Cell
from robustfl.scenarios.build import build

STYLES = ("clean", "textured", "shifted")
IMAGES = os.environ.get("ROBUSTFL_TEST_IMAGES", "")


# --- users of several domains ----------------------------------------------------------------------------------------


def test_every_domain_is_cut_into_consecutive_blocks_as_long_as_those_of_the_smallest():
    users = domain_split([11, 7], [9, 5], users=2, validation=0.5)
    assert [u.domain for u in users] == [0, 0, 1, 1]
    assert [u.train.tolist() for u in users] == [[0, 1], [3, 4], [11, 12], [14, 15]]
    assert [u.validation.tolist() for u in users] == [[2], [5], [13], [16]]
    assert [u.test.tolist() for u in users] == [[0, 1], [2, 3], [9, 10], [11, 12]]


def test_domains_may_have_unequally_many_users_who_share_equally_much():
    users = domain_split([12, 13], [6, 7], users=[3, 1], validation=0.5)
    assert [u.domain for u in users] == [0, 0, 0, 1]
    assert [len(u.train) + len(u.validation) for u in users] == [4, 4, 4, 12]
    assert [u.train[0] for u in users] == [0, 4, 8, 12]
    assert [u.test.tolist() for u in users] == [[0, 1], [2, 3], [4, 5], [6, 7, 8, 9, 10, 11]]
    with pytest.raises(UsageError, match="2 training and 2 test sets, 3 with users"):
        domain_split([12, 13], [6, 7], users=[3, 1, 1])


def test_unequal_users_share_all_images_and_keep_the_least():
    rule = DirichletSizes(alpha=0.5, least=7)
    generator = np.random.default_rng(0)
    lengths = [rule.lengths(100, 5, generator) for _ in range(50)]
    assert {sum(found) for found in lengths} == {100}
    assert min(map(min, lengths)) >= 7
    assert max(map(max, lengths)) > 40  # equal users would have 20
    users = domain_split([50, 60], [9, 9], users=[2, 3], blocks=lambda total, n: rule.lengths(total, n, generator))
    assert np.concatenate([np.append(u.train, u.validation) for u in users]).tolist() == [*range(100)]
    assert [len(u.test) for u in users] == [4, 4, 3, 3, 3]
    assert rule.lengths(35, 5, generator) == [7] * 5
    shares = np.random.default_rng(3).dirichlet([0.5] * 5)
    expected = [7 + int(65 * share) for share in shares[:4]]
    assert rule.lengths(100, 5, np.random.default_rng(3)) == [*expected, 100 - sum(expected)]
    with pytest.raises(Refused, match="16 users of 7 images at least, and the domain has 100"):
        rule.lengths(100, 16, generator)


def test_a_share_is_not_spoilt_by_rounding():
    # 100 · 0.29 is below 29 in floating point.
    assert len(domain_split([100], [1], users=1, share=0.29)[0].train) == 29
    assert len(domain_split([100], [1], users=1, validation=0.29)[0].validation) == 29


# --- the embedded domains --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    root = tmp_path_factory.mktemp("embedded")
    return {style: DigitsDomain(style=style).load(root) for style in STYLES}


def test_embedded_domains_are_the_same_split_digits_in_one_shape(embedded, tmp_path):
    digits = Digits().load(tmp_path)
    for arrays in embedded.values():
        assert (arrays.shape, arrays.classes, arrays.train_x.dtype) == ((3, 16, 16), 10, np.uint8)
        assert np.array_equal(arrays.train_y, digits.train_y)
        assert np.array_equal(arrays.test_y, digits.test_y)
    assert len({a.fingerprint for a in embedded.values()}) == 3


def test_the_clean_domain_is_the_enlarged_digit_in_grey(embedded, tmp_path):
    small = Digits().load(tmp_path).test_x[..., 0].astype(float)
    clean = embedded["clean"].test_x.astype(float)
    assert np.array_equal(clean[..., 0], clean[..., 2])
    x = torch.from_numpy(small)[:, None]
    larger = nn.functional.interpolate(x, size=(16, 16), mode="bilinear", align_corners=False)[:, 0]
    assert np.abs(clean[..., 0] - larger.numpy()).max() <= 0.5 + 1e-9


def test_the_shifted_domain_is_the_digit_blurred_moved_and_tinted(embedded):
    draws, n = numpy_stream(0, "digits-domain", "shifted", "test_x"), 355
    down, right = draws.integers(-2, 3, size=n), draws.integers(-2, 3, size=n)
    ink, ground = draws.uniform(0.35, 1.0, size=(n, 3)), draws.uniform(0.0, 0.3, size=(n, 3))
    grey = torch.from_numpy(embedded["clean"].test_x[..., :1].astype(float) / 255).permute(0, 3, 1, 2)
    bell = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
    soft = nn.functional.conv2d(grey, torch.outer(bell, bell)[None, None], padding=1)[:, 0]
    for k in range(n):
        wide = torch.zeros(20, 20, dtype=torch.float64)
        wide[2 + down[k] : 18 + down[k], 2 + right[k] : 18 + right[k]] = soft[k]
        share = wide[2:18, 2:18, None].numpy()
        made = 255 * (share * ink[k] + (1 - share) * ground[k])
        assert np.abs(embedded["shifted"].test_x[k] - made).max() < 1.5  # both are rounded


def test_the_textured_domain_darkens_three_waves_where_the_digit_is(embedded):
    draws, n = numpy_stream(0, "digits-domain", "textured", "test_x"), 355
    rows, columns = np.mgrid[:16, :16][..., None] * (2 * np.pi / 16)
    ground = np.full((n, 16, 16, 3), 0.7)
    for _ in range(3):
        down, sign, right = (
            draws.integers(1, 4, size=(n, 1, 1, 3)), np.sign(draws.random((n, 1, 1, 3)) - 0.5),
            draws.integers(1, 4, size=(n, 1, 1, 3)),
        )  # fmt: skip
        phase = draws.uniform(0, 2 * np.pi, size=(n, 1, 1, 3))
        ground += 0.25 / 3 * np.sin(sign * down * rows + right * columns + phase)
    made = 255 * ground - 0.9 * ground * embedded["clean"].test_x
    assert np.abs(embedded["textured"].test_x - made).max() < 1.5  # both are rounded


def test_embedded_domains_are_made_again_bit_for_bit(embedded, tmp_path):
    again = DigitsDomain(style="shifted").load(tmp_path)
    assert again.fingerprint == embedded["shifted"].fingerprint
    assert np.array_equal(again.train_x, embedded["shifted"].train_x)


# --- pickles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(6))
def test_pairs_of_arrays_are_read_in_every_protocol(tmp_path, protocol):
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    content = (images, np.array(["a", "bc"]), [np.int64(3), "x"], np.array(["d", None], dtype=object), images.T)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(content, protocol=protocol))
    read = read_pickle(tmp_path / "a.pkl")
    assert all(np.array_equal(a, b) for a, b in zip(read, content, strict=True))


def test_arrays_under_the_names_of_older_numpy_are_read(tmp_path):
    images = np.arange(6, dtype=np.uint8)
    old = pickle.dumps(images, protocol=2).replace(b"numpy._core.", b"numpy.core.")
    (tmp_path / "a.pkl").write_bytes(old)
    assert np.array_equal(read_pickle(tmp_path / "a.pkl"), images)


class _Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (np.zeros(1), x), lambda x: np.array([x], dtype=object)])
def test_foreign_objects_are_refused_before_they_run(tmp_path, wrap):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(wrap(_Runs(tmp_path / "ran"))))
    with pytest.raises(UsageError, match=r"a\.pkl is not a pickle of arrays: it names \w+\.mkdir"):
        read_pickle(tmp_path / "a.pkl")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [torch.zeros(2), {1, 2}.__class__, eval, slice(3)], ids=lambda c: type(c).__name__)
def test_other_types_are_refused_by_name(tmp_path, content):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(UsageError, match=r"it names [\w.]+; only NumPy arrays"):
        read_pickle(tmp_path / "a.pkl")


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps(np.arange(3))[:60]])
def test_a_file_that_is_no_pickle_or_ends_early_is_named(tmp_path, content):
    (tmp_path / "a.pkl").write_bytes(content)
    with pytest.raises(UsageError, match=r"a\.pkl is not a pickle of arrays: \w"):
        read_pickle(tmp_path / "a.pkl")


# --- FedBN's Digits --------------------------------------------------------------------------------------------------


def _digits(root, domain="USPS", shape=(16, 16), parts=2, labels=None):
    folder = root / "digits" / domain
    (folder / "partitions").mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    sizes = {**{f"partitions/train_part{i}.pkl": 3 for i in range(parts)}, "test.pkl": 2}
    made = {}
    for name, count in sizes.items():
        x = generator.integers(256, size=(count, *shape), dtype=np.uint8)
        y = np.arange(count) if labels is None else labels[:count]
        (folder / name).write_bytes(pickle.dumps((x, y), protocol=pickle.HIGHEST_PROTOCOL))
        made[name] = x
    return made


def test_fedbns_parts_are_joined_in_order_resized_and_made_colour(tmp_path):
    made = _digits(tmp_path)
    arrays = DigitsFedBN(domain="USPS", parts=2).load(tmp_path)
    assert (arrays.shape, len(arrays.train_y), len(arrays.test_y)) == ((3, 28, 28), 6, 2)
    assert arrays.train_y.tolist() == [0, 1, 2, 0, 1, 2]
    second = made["partitions/train_part1.pkl"][0]
    by_pillow = np.asarray(Image.fromarray(second).resize((28, 28), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(arrays.train_x[3, ..., 1].astype(int) - by_pillow).max() <= 1
    assert np.array_equal(arrays.train_x[..., 0], arrays.train_x[..., 2])


def test_fedbns_colour_images_of_the_right_size_stay_as_they_are(tmp_path):
    made = _digits(tmp_path, "MNIST_M", (28, 28, 3), parts=1)
    arrays = DigitsFedBN(domain="MNIST_M", parts=1).load(tmp_path)
    assert np.array_equal(arrays.test_x, made["test.pkl"])


def test_a_parameter_called_parts_is_one_and_no_list_of_methods():
    found = identity(DigitsFedBN(domain="USPS", parts=3))
    assert found["params"]["parts"] == 3
    assert "parts" not in found


def test_labels_in_a_column_are_taken(tmp_path):
    _digits(tmp_path, parts=1, labels=np.array([[7], [0], [9]]))
    assert DigitsFedBN(domain="USPS", parts=1).load(tmp_path).train_y.tolist() == [7, 0, 9]


def test_a_missing_domain_or_part_is_named(tmp_path):
    _digits(tmp_path, parts=2)
    with pytest.raises(DataMissing, match=r"digits/USPS/partitions/train_part2\.pkl"):
        DigitsFedBN(domain="USPS", parts=3).load(tmp_path)
    with pytest.raises(DataMissing, match="digits/SVHN/"):
        DigitsFedBN(domain="SVHN").load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros((2, 28, 28), np.uint8), "should hold a pair of arrays"),
        (([1, 2], [3, 4]), "should hold a pair of arrays"),
        ((np.zeros((2, 28, 28)), np.arange(2)), "float64"),
        ((np.zeros((2, 28, 28), np.uint8), np.arange(3)), r"labels int64 \(3,\)"),
        ((np.zeros((2, 28, 28), np.uint8), np.eye(2, 10, dtype=int)), r"labels int64 \(2, 10\)"),
        ((np.zeros((2, 28, 28, 2), np.uint8), np.arange(2)), "has 2 channels, which cannot become 3"),
        ((np.zeros((2, 28, 28), np.uint8), np.array([3, 10])), "label 10"),
        ((np.zeros((2, 28, 28), np.uint8), np.array([0.5, 1.0])), "float64; expected integers"),
        ((np.zeros((0, 28, 28), np.uint8), np.arange(0)), r"\(0, 28, 28\)"),
    ],
)
def test_a_bad_part_is_named_with_what_is_wrong(tmp_path, content, message):
    _digits(tmp_path, "MNIST", (28, 28), parts=1)
    (tmp_path / "digits/MNIST/test.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(UsageError, match=message):
        DigitsFedBN(domain="MNIST", parts=1).load(tmp_path)


# --- DomainNet and Office-Caltech ------------------------------------------------------------------------------------


def _picture(path, colour, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 12), colour).convert(mode).save(path)


def _domainnet(root, *, listed="DomainNet/"):
    names = ["bird", "zebra", "tiger"]
    for name, colour in zip(names, ("red", "lime", "blue"), strict=True):
        _picture(root / f"DomainNet/real/{name}/1.png", colour)
    paths = [f"{listed}real/{name}/1.png" for name in names]
    for part in ("train", "test"):
        (root / f"DomainNet/real_{part}.pkl").write_bytes(pickle.dumps((paths, names)))


@pytest.mark.parametrize("listed", ["DomainNet/", ""])
def test_pickled_lists_name_images_by_class_in_their_order(tmp_path, listed):
    _domainnet(tmp_path, listed=listed)
    arrays = DomainNet(domain="real", size=8).load(tmp_path)
    assert (arrays.shape, arrays.classes, arrays.train_y.tolist()) == ((3, 8, 8), 10, [0, 9, 5])
    assert arrays.train_x[:, 4, 4].tolist() == [[255, 0, 0], [0, 255, 0], [0, 0, 255]]


def test_arrays_of_names_serve_as_lists_and_numbers_as_labels(tmp_path):
    _domainnet(tmp_path)
    paths = np.array(["real/zebra/1.png", "real/bird/1.png"])
    (tmp_path / "DomainNet/real_train.pkl").write_bytes(pickle.dumps((paths, np.array([9, 0]))))
    assert DomainNet(size=8).load(tmp_path).train_y.tolist() == [9, 0]


def test_images_of_another_size_are_decoded_anew(tmp_path):
    _domainnet(tmp_path)
    sizes = [DomainNet(domain="real", size=size).load(tmp_path).train_x.shape[1:3] for size in (8, 16, 8)]
    assert sizes == [(8, 8), (16, 16), (8, 8)]


@pytest.mark.parametrize("part", ["train", "test"])
def test_images_replaced_under_the_same_lists_are_decoded_anew(tmp_path, part):
    _domainnet(tmp_path)
    _picture(tmp_path / "DomainNet/real/bird/2.png", "red")
    (tmp_path / f"DomainNet/real_{part}.pkl").write_bytes(pickle.dumps((["real/bird/2.png"], ["bird"])))
    before = DomainNet(size=8).load(tmp_path)
    _picture(tmp_path / "DomainNet/real/bird/2.png", "lime")
    os.utime(tmp_path / "DomainNet/real/bird/2.png", (1, 1))  # another time, however coarse the disk's clock
    after = DomainNet(size=8).load(tmp_path)
    assert [getattr(a, f"{part}_x")[0, 0, 0].tolist() for a in (before, after)] == [[255, 0, 0], [0, 255, 0]]
    assert DomainNet(size=8).fingerprint(tmp_path) == after.fingerprint != before.fingerprint


def test_official_lists_are_filtered_to_the_ten_classes_and_shuffled(tmp_path):
    for part in ("train", "test"):
        lines = []
        for number, name in enumerate(("aircraft_carrier", "bird", "ice_cream", "zebra")):
            for i in range(6):
                _picture(tmp_path / f"DomainNet/sketch/{name}/a {i}.png", (i, number, 0))
                lines.append(f"sketch/{name}/a {i}.png {number}")
        (tmp_path / f"DomainNet/sketch_{part}.txt").write_text("\n".join(lines) + "\n")
    arrays = DomainNet(domain="sketch", size=8).load(tmp_path)
    assert sorted(arrays.train_y.tolist()) == [0] * 6 + [3] * 6 + [9] * 6
    assert set(arrays.train_y[:9]) == {0, 3, 9}  # sorted, the first nine would be of two classes
    of = {0: 1, 3: 2, 9: 3}
    assert arrays.train_x[:, 0, 0, 1].tolist() == [of[y] for y in arrays.train_y.tolist()]


def test_grey_and_transparent_pictures_become_three_channels(tmp_path):
    for i, mode in enumerate(("L", "RGBA", "P")):
        _picture(tmp_path / f"office_caltech_10/dslr/mug/{i}.png", "gray", mode)
    paths = [f"office_caltech_10/dslr/mug/{i}.png" for i in range(3)]
    for part in ("train", "test"):
        (tmp_path / f"office_caltech_10/dslr_{part}.pkl").write_bytes(pickle.dumps((paths, ["mug"] * 3)))
    arrays = OfficeCaltech(domain="dslr", size=8).load(tmp_path)
    assert arrays.train_y.tolist() == [8, 8, 8]
    assert set(arrays.train_x.ravel().tolist()) <= set(range(120, 137))  # the palette has no 128


def test_missing_lists_and_images_are_named(tmp_path):
    with pytest.raises(DataMissing, match=r"domainnet: there is no .*DomainNet/clipart_train\.pkl or \.txt"):
        DomainNet(domain="clipart").load(tmp_path)
    with pytest.raises(DataMissing, match="office_caltech_10/webcam_train"):
        OfficeCaltech(domain="webcam").load(tmp_path)
    _domainnet(tmp_path)
    (tmp_path / "DomainNet/real/zebra/1.png").unlink()
    with pytest.raises(DataMissing, match=r"real_train\.pkl lists 'DomainNet/real/zebra/1\.png'"):
        DomainNet(size=8).load(tmp_path)


@pytest.mark.parametrize("path", ["../outside.png", "/etc/hostname", "DomainNet/../../outside.png", ""])
def test_lists_cannot_name_files_elsewhere(tmp_path, path):
    _domainnet(tmp_path)
    _picture(tmp_path / "outside.png", "red")
    (tmp_path / "DomainNet/real_test.pkl").write_bytes(pickle.dumps(([path], ["bird"])))
    with pytest.raises(DataMissing, match="no file below"):
        DomainNet(size=8).load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ((["a"], ["bird", "zebra"]), "a pair of paths and labels of one length"),
        ((3, 4), "a pair of paths and labels"),
        (7, "a pair of paths and labels"),
        (([], []), "lists no image"),
        ((["DomainNet/real/bird/1.png"], ["dog"]), "label 'dog' is none of bird"),
        ((["DomainNet/real/bird/1.png"], [10]), "label 10 is none of"),
    ],
)
def test_a_bad_list_is_named_with_what_is_wrong(tmp_path, content, message):
    _domainnet(tmp_path)
    (tmp_path / "DomainNet/real_train.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(UsageError, match=message):
        DomainNet(size=8).load(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [("real/bird/1.png\n", "line 1: expected 'path label'"), ("real/dog/1.png 3\n", "no image of the classes bird")],
)
def test_a_bad_text_list_is_named(tmp_path, text, message):
    _domainnet(tmp_path)
    (tmp_path / "DomainNet/real_train.pkl").unlink()
    (tmp_path / "DomainNet/real_train.txt").write_text(text)
    with pytest.raises(UsageError, match=message):
        DomainNet(size=8).load(tmp_path)


def test_an_unreadable_picture_is_named(tmp_path):
    _domainnet(tmp_path)
    (tmp_path / "DomainNet/real/bird/1.png").write_bytes(b"no picture")
    with pytest.raises(UsageError, match=r"bird/1\.png is no readable image"):
        DomainNet(size=8).load(tmp_path)


# --- resizing --------------------------------------------------------------------------------------------------------


def test_a_resized_set_has_the_wanted_shape_the_same_labels_and_pillows_pixels(tmp_path):
    digits, larger = Digits().load(tmp_path), Resized(dataset="digits", size=28).load(tmp_path)
    assert larger.shape == (3, 28, 28)
    assert np.array_equal(larger.train_y, digits.train_y)
    assert np.array_equal(larger.test_x[..., 0], larger.test_x[..., 1])
    for i in (0, 100):
        by_pillow = Image.fromarray(digits.test_x[i, ..., 0]).resize((28, 28), Image.Resampling.BILINEAR)
        difference = larger.test_x[i, ..., 0].astype(int) - np.asarray(by_pillow)
        assert np.abs(difference).max() <= 1
        assert abs(difference.mean()) < 0.1  # rounded to the nearest, not down


def test_a_resized_set_shrinks_with_antialiasing(tmp_path):
    digits, smaller = Digits().load(tmp_path), Resized(dataset="digits", size=5, channels=1).load(tmp_path)
    by_pillow = Image.fromarray(digits.test_x[3, ..., 0]).resize((5, 5), Image.Resampling.BILINEAR)
    assert np.abs(smaller.test_x[3, ..., 0].astype(int) - np.asarray(by_pillow)).max() <= 1


def test_a_resized_set_keeps_its_number_of_classes_where_few_images_are_left(tmp_path):
    assert Resized(dataset="digits(limit=2, test_limit=1)").load(tmp_path).classes == 10


def test_images_that_fit_are_left_alone(tmp_path):
    same = Resized(dataset="digits", size=8, channels=1).load(tmp_path)
    assert same.fingerprint == Digits().fingerprint(tmp_path)


def test_a_resized_set_follows_its_inner_ones_content_and_parameters(tmp_path):
    x = np.arange(32, dtype=np.uint8).reshape(8, 2, 2, 1)
    parts = {"train_x": x, "train_y": np.arange(8) % 2, "test_x": x[:2], "test_y": np.arange(2)}
    np.savez(tmp_path / "mine.npz", **parts)
    spec = f"resized(dataset='npz(path={tmp_path}/mine.npz, limit=6)', size=4)"
    first = dataset_from_spec(spec)
    assert len(first.load(tmp_path).train_y) == 6
    assert first.fingerprint(tmp_path) != Resized(dataset=f"npz:{tmp_path}/mine.npz", size=4).fingerprint(tmp_path)
    before = first.fingerprint(tmp_path)
    np.savez(tmp_path / "mine.npz", **{**parts, "train_x": x[::-1]})
    assert first.fingerprint(tmp_path) != before


def test_floats_stay_floats_in_range(tmp_path):
    x = np.random.default_rng(0).random((4, 6, 6, 1))
    y = np.arange(4) % 2
    np.savez(tmp_path / "mine.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    made = Resized(dataset=f"npz:{tmp_path}/mine.npz", size=9).load(tmp_path).train_x
    assert (made.dtype, made.shape) == (np.float32, (4, 9, 9, 3))
    assert 0 <= made.min() < made.max() <= 1


def test_colour_cannot_become_grey_and_what_is_resized_is_not_resized_again(tmp_path):
    with pytest.raises(UsageError, match="digits-domain has 3 channels, which cannot become 1"):
        Resized(dataset="digits-domain", channels=1).load(tmp_path)
    with pytest.raises(UsageError, match="resized already"):
        Resized(dataset="resized(dataset=digits)")
    with pytest.raises(UsageError, match="'mnist'"):
        Resized(dataset="mnits")


# --- real images -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(
    not IMAGES or not (Path(IMAGES) / "unpack.py").is_file(),
    reason="ROBUSTFL_TEST_IMAGES names no folder of images; they are not part of the project",
)
def test_real_digits_domains_take_part_together(tmp_path):
    names = ("digits-mnist", "digits-usps", "digits-mnistm")
    command = [sys.executable, "unpack.py", str(tmp_path), *names, "--limit", "300"]
    subprocess.run(command, cwd=IMAGES, check=True, capture_output=True)
    sets = [dataset_from_spec(f"resized(dataset='npz:{name}.npz', size=28)").load(tmp_path) for name in names]
    assert {s.shape for s in sets} == {(3, 28, 28)}
    assert [s.classes for s in sets] == [10, 10, 10]
    users = domain_split([len(s.train_y) for s in sets], [len(s.test_y) for s in sets], users=10, validation=0.5)
    assert {len(u.train) for u in users} == {15}


def test_the_user_with_the_shortest_block_needs_a_training_image():
    for least in (1, 2):
        split = domain_split([20], [20], users=2, validation=0.5, blocks=lambda total, users, k=least: [k, total - k])
        assert [len(s.train) for s in split] == [1, 10 - least // 2]
    with pytest.raises(Refused, match="2 users per domain get 0 training and 10 test images each"):
        domain_split([20], [20], users=2, blocks=lambda total, users: [0, total])


def test_pixels_of_domains_are_scaled_by_what_all_of_them_hold(tmp_path, monkeypatch):
    monkeypatch.setitem(normalize._KNOWN, "digits", ((0.9,), (0.7,)))  # customary for the first domain alone
    x = Digits().load(tmp_path).train_x[:40]
    y = np.arange(40) % 10
    np.savez(tmp_path / "dark.npz", train_x=x // 4, train_y=y, test_x=x[:10] // 4, test_y=y[:10])
    cell = Cell.of({
        "domains": ["digits", f"npz:{tmp_path}/dark.npz"], "clients": 2, "f": 0, "batch": 8, "rounds": 1,
        "model": "mlp", "norm": "none", "evasions": [],
    })  # fmt: skip
    scaling = next(m for m in build(cell).experiment.model.modules() if isinstance(m, Normalize))
    everything = np.concatenate([Digits().load(tmp_path).train_x, x // 4]) / 255
    np.testing.assert_allclose(float(scaling.mean), everything.mean(), rtol=1e-5)
    np.testing.assert_allclose(float(scaling.std), everything.std(), rtol=1e-3)
