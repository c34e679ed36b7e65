//! HTML AND SVG: texts, numbers and lines for pages. Input is escaped; its meaning, and access to pages, are outside of
//! this room.

mod bars;
mod html;
mod nonce;
mod picture;

pub use bars::{BarMark, Bars};
pub use html::{EscapedText, IsolatedName, bytes, count, of, percent, rate, span};
pub use nonce::nonce;
pub use picture::{ChartLine, Stretch, draw, frame, key, top};

/// The style sheet of all pages: light and dark, narrow and wide, screen and paper.
pub const STYLE: &str = include_str!("page.css");
