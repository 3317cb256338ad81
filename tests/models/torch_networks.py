"""The released networks written anew in PyTorch, with their names of layers. It needs torch."""

import torch
from torch import nn
from torch.nn import functional as F


def conv(inputs, outputs, size, stride=1):
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


class Residual(nn.Module):
    def __init__(self, inputs, width, stride, bottleneck, shortcut):
        super().__init__()
        plan = [(3, width, stride), (3, width, 1)]
        if bottleneck:
            plan = [(1, width, 1), (3, width, stride), (1, 4 * width, 1)]
        self.count, self.shortcut_name, channels = len(plan), None, inputs
        for i, (size, outputs, step) in enumerate(plan, start=1):
            setattr(self, f"conv{i}", conv(channels, outputs, size, step))
            setattr(self, f"bn{i}", nn.BatchNorm2d(outputs))
            channels = outputs
        if stride != 1 or channels != inputs:
            self.shortcut_name = shortcut
            layers = conv(inputs, channels, 1, stride), nn.BatchNorm2d(channels)
            setattr(self, shortcut, nn.Sequential(*layers))
        self.channels = channels

    def forward(self, x):
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            y = F.relu(y) if i < self.count else y
        return F.relu(y + (getattr(self, self.shortcut_name)(x) if self.shortcut_name else x))


class ResNet(nn.Module):
    def __init__(self, blocks, bottleneck, *, width, stem_width, stem, cells, shortcut, classes):
        super().__init__()
        self.large = stem == "7x7"
        self.conv1 = conv(3, stem_width, 7 if self.large else 3, 2 if self.large else 1)
        self.bn1 = nn.BatchNorm2d(stem_width)
        channels, self.stages = stem_width, len(blocks)
        for stage, number in enumerate(blocks):
            layers = []
            for block in range(number):
                stride = 2 if stage and not block else 1
                made = Residual(channels, width * 2**stage, stride, bottleneck, shortcut)
                layers.append(made)
                channels = made.channels
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.pool = nn.AdaptiveAvgPool2d(cells)
        self.fc = nn.Linear(channels * cells**2, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(x, 3, 2, 1) if self.large else x
        for stage in range(1, self.stages + 1):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(torch.flatten(self.pool(x), 1))


class Dense(nn.Module):
    def __init__(self, inputs, growth, norm, new_first):
        super().__init__()
        self.norm, self.new_first = norm, new_first
        setattr(self, f"{norm}1", nn.BatchNorm2d(inputs))
        self.conv1 = conv(inputs, 4 * growth, 1)
        setattr(self, f"{norm}2", nn.BatchNorm2d(4 * growth))
        self.conv2 = conv(4 * growth, growth, 3)

    def forward(self, x):
        y = x
        for i, layer in ((1, self.conv1), (2, self.conv2)):
            y = layer(F.relu(getattr(self, f"{self.norm}{i}")(y)))
        return torch.cat([y, x] if self.new_first else [x, y], 1)


class Transition(nn.Module):
    def __init__(self, inputs, norm):
        super().__init__()
        self.normal = norm
        setattr(self, norm, nn.BatchNorm2d(inputs))
        self.conv = conv(inputs, inputs // 2, 1)

    def forward(self, x):
        return F.avg_pool2d(self.conv(F.relu(getattr(self, self.normal)(x))), 2)


class DenseNet(nn.Module):
    """Named as the code for CIFAR is."""

    def __init__(self, blocks, growth, *, classes):
        super().__init__()
        channels, self.blocks = 2 * growth, len(blocks)
        self.conv1 = conv(3, channels, 3)
        for block, depth in enumerate(blocks, start=1):
            layers = []
            for _ in range(depth):
                layers.append(Dense(channels, growth, "bn", True))
                channels += growth
            setattr(self, f"dense{block}", nn.Sequential(*layers))
            if block < len(blocks):
                setattr(self, f"trans{block}", Transition(channels, "bn"))
                channels //= 2
        self.bn = nn.BatchNorm2d(channels)
        self.linear = nn.Linear(channels, classes)

    def forward(self, x):
        x = self.conv1(x)
        for block in range(1, self.blocks + 1):
            x = getattr(self, f"dense{block}")(x)
            x = getattr(self, f"trans{block}")(x) if block < self.blocks else x
        return self.linear(F.relu(self.bn(x)).mean((2, 3)))


class TorchvisionDenseNet(nn.Module):
    """Named as torchvision's, and the one of temperature scaling."""

    def __init__(self, blocks, growth, *, stem, final_norm, classes):
        super().__init__()
        channels, large = 2 * growth, stem == "7x7"
        self.features = nn.Sequential()
        self.features.add_module("conv0", conv(3, channels, 7 if large else 3, 2 if large else 1))
        if large:
            self.features.add_module("norm0", nn.BatchNorm2d(channels))
            self.features.add_module("relu0", nn.ReLU())
            self.features.add_module("pool0", nn.MaxPool2d(3, 2, 1))
        for block, depth in enumerate(blocks, start=1):
            layers = nn.Sequential()
            for layer in range(1, depth + 1):
                layers.add_module(f"denselayer{layer}", Dense(channels, growth, "norm", False))
                channels += growth
            self.features.add_module(f"denseblock{block}", layers)
            if block < len(blocks):
                self.features.add_module(f"transition{block}", Transition(channels, "norm"))
                channels //= 2
        self.features.add_module(final_norm, nn.BatchNorm2d(channels))
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x):
        return self.classifier(F.relu(self.features(x)).mean((2, 3)))
