"""Small convolutions that the tests of several solvers share: with groups, strides, dilation and one tap."""

SMALL_CONVS = [  # n, c, k, groups, size, filter, stride, padding, dilation
    (2, 8, 16, 1, (9, 10), 3, 1, 1, 1),
    (2, 20, 24, 1, (12, 7), 1, 1, 0, 1),
    (1, 6, 6, 6, (20, 21), 3, 2, 1, 1),
    (2, 8, 12, 4, (11, 13), 3, 1, 2, 2),
    (3, 40, 72, 1, (4, 3), 3, 1, 1, 1),
]
