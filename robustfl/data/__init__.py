"""Data sets, partitions and batches on the device. Importing this room registers its methods; nothing is downloaded."""

from __future__ import annotations

from robustfl.data.domains import DirichletSizes, UserSlice, domain_split, equal_blocks
from robustfl.data.embedded import Digits, DigitsDomain
from robustfl.data.fedbn import DigitsFedBN, DomainNet, OfficeCaltech
from robustfl.data.hf import HuggingFace
from robustfl.data.normalize import Normalize, channel_statistics
from robustfl.data.npz import Npz
from robustfl.data.partitions import Dirichlet, Gamma, Iid, KClasses, Natural, label_counts, train_validation
from robustfl.data.pictures import ImageFolder
from robustfl.data.public import Cifar10, Cifar100, Emnist, FashionMnist, Mnist, Svhn, Usps
from robustfl.data.resident import Augment, Batches, Resident
from robustfl.data.resized import Resized
from robustfl.data.specs import data_root, dataset_from_spec
from robustfl.data.tiny_imagenet import TinyImageNet

__all__ = [
    "Augment", "Batches", "Cifar10", "Cifar100", "Digits", "DigitsDomain", "DigitsFedBN", "Dirichlet", "DirichletSizes",
    "DomainNet", "Emnist", "FashionMnist", "Gamma", "HuggingFace", "Iid", "ImageFolder", "KClasses", "Mnist", "Natural",
    "Normalize", "Npz", "OfficeCaltech", "Resident", "Resized", "Svhn", "TinyImageNet", "UserSlice", "Usps",
    "channel_statistics", "data_root", "dataset_from_spec", "domain_split", "equal_blocks", "label_counts",
    "train_validation",
]  # fmt: skip
