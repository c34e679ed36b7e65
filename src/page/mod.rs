//! HTML AND SVG: texts, numbers and lines for pages. Input is escaped; its meaning, and access to pages, are outside of
//! this room.

mod bars;
mod html;
mod nonce;
mod picture;

pub use bars::{Bars, Mark};
pub use html::{Name, Text, bytes, count, of, percent, rate, span};
pub use nonce::nonce;
pub use picture::{Line, Stretch, draw, frame, key, top};

/// The style sheet of all pages: light and dark, narrow and wide, screen and paper.
pub const STYLE: &str = include_str!("page.css");
