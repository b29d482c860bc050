"""Data sets, partitions and batches on the device. Importing this room registers its methods; nothing is downloaded."""

from __future__ import annotations

from robustfl.data.batches import Batches
from robustfl.data.digits import Digits
from robustfl.data.digits_fedbn import DigitsFedBN
from robustfl.data.dirichlet import Dirichlet
from robustfl.data.domainnet import DomainNet
from robustfl.data.domains import DirichletSizes, UserSlice, domain_split, equal_blocks
from robustfl.data.embedded_domains import DigitsDomain
from robustfl.data.gamma import Gamma
from robustfl.data.iid import Iid
from robustfl.data.k_classes import KClasses
from robustfl.data.normalize import Normalize, channel_statistics
from robustfl.data.npz import Npz
from robustfl.data.office_caltech import OfficeCaltech
from robustfl.data.partitions import label_counts, train_validation
from robustfl.data.public import Cifar10, Cifar100, Emnist, FashionMnist, Mnist, Svhn, Usps
from robustfl.data.resident import Augment, Resident
from robustfl.data.resized import Resized
from robustfl.data.roots import data_root
from robustfl.data.specs import dataset_from_spec
from robustfl.data.tiny_imagenet import TinyImageNet

__all__ = [
    "Augment", "Batches", "Cifar10", "Cifar100", "Digits", "DigitsDomain", "DigitsFedBN", "Dirichlet", "DirichletSizes",
    "DomainNet", "Emnist", "FashionMnist", "Gamma", "Iid", "KClasses", "Mnist", "Normalize", "Npz", "OfficeCaltech",
    "Resident", "Resized", "Svhn", "TinyImageNet", "UserSlice", "Usps", "channel_statistics", "data_root",
    "dataset_from_spec", "domain_split", "equal_blocks", "label_counts", "train_validation",
]  # fmt: skip
