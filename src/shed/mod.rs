//! WHEN THE HOST IS FULL: readings in; how hard to shed, and who is refused, out.
//!
//! One file per piece of the arithmetic. Nothing here takes a reading, locks, logs, fails, allocates or reads a clock.
//! Whatever the readings are, be they missing, not numbers or absurd, nothing panics, and doubt lets work through.

pub mod brake;
pub mod chance;
pub mod claim;
pub mod draw;
pub mod heavy;
pub mod hint;
pub mod mapping;
pub mod queue_age;
pub mod reserve;
pub mod slow_law;
pub mod window;

pub use brake::{Brake, band_slots};
pub use chance::chance;
pub use claim::{Claim, Here};
pub use heavy::Heavy;
pub use reserve::FleetSums;
pub use slow_law::{Severity, SlowLaw};
pub use window::Window;
