//! The machine into readings: recorded bytes, trees of files that stand for /proc and /sys, and this very machine.

mod braking;
mod cost;
mod cpu_quota;
mod live;
mod machine;
mod netlink;
mod peers;
mod pressure;
mod telling;
