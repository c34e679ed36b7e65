//! RESTARTS: keeps the daemon's state on disk across restarts. This room decides nothing, and no error here prevents a
//! start.

mod crashes;
mod directory;
mod files;
mod keeper;
mod moment;
mod record;
mod snapshot;
mod switches;

pub use crashes::{CRASH_LOOP_ENDS, CRASH_LOOP_SPAN, Crashes};
pub use directory::{Directory, LOCK_WAIT};
pub use files::{SmallFile, Whole, open_regular, write_whole};
pub use keeper::{Keeper, Keeping, LAST_WRITE_MAX, WRITE_EVERY};
pub use moment::{BOOT_ID_FILE, Moment};
pub use record::{Record, StateFile, keep_evidence, set_aside};
pub use snapshot::{KeyBytes, PutBack, Stamp, Useless, VERSION, file_bytes_max, read_tables, write_tables};
pub use switches::{ORDERS_VERSION, OrdersRead, Unreadable, read_orders, write_orders};
