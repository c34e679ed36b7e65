//! HTML AND SVG: words, numbers and lines as a page shows them. What comes in is text and stays text; what it means, and
//! who looks at it, is not known here.

mod bars;
mod html;
mod nonce;
mod picture;

pub use bars::{Bars, Mark};
pub use html::{Name, Text, bytes, count, of, percent, rate, span};
pub use nonce::nonce;
pub use picture::{Line, Stretch, draw, frame, key, top};

/// How pages look: by day and by night, narrow and wide, on a screen and on paper.
pub const STYLE: &str = include_str!("page.css");
