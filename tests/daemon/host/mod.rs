//! Samples of the machine: recorded bytes, file trees for /proc and /sys, and this machine.

mod cpu_quota;
mod identity;
mod live;
mod logging;
mod machine;
mod netlink;
mod pressure;
