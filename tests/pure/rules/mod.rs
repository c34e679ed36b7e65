//! The rules reader: the meaning of good files, directories, bounds. `diagnostics/` has the errors and
//! warnings, `fuzz` files with a typo in them.

use crate::problems;
mod bounds;
mod files;
mod fleet;
mod library;
mod lists;
mod quotas;
mod reference;
mod tables;
