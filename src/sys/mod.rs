//! THE KERNEL: the few calls no crate offers.
