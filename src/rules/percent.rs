//! Percentages such as `80%` and `12.5%`, held in thousandths of the whole.

use super::amount;
use super::de::Scalar;
use super::problem::{ValueProblem, shown};
use super::values::is_scalar;

/// Reads a percentage of `least`, which is 0 or 1, to `most` thousandths.
pub(super) fn read(
    Scalar(field, kind, text): Scalar<'_>,
    least: u16,
    most: u16,
) -> Result<u16, ValueProblem> {
    if !is_scalar(kind) {
        return Err(ValueProblem::new(format!("`{field}` is a percentage, not {kind}"), "write it like 80%"));
    }
    match parse(text, kind == "a number", field, most)? {
        0 if least > 0 => {
            Err(ValueProblem::new(format!("`{field}` is 0%"), "leave it out, or write at least 0.1%"))
        }
        share => Ok(share),
    }
}

fn parse(text: &str, is_number: bool, field: &str, most: u16) -> Result<u16, ValueProblem> {
    let Some(number) = text.strip_suffix('%') else {
        let message = format!("`{field}` is a percentage, not {}", shown(text));
        let help = match thousandths(text) {
            Some(part) if is_number && part <= 10 => format!("write {}", Percent(u32::from(part) * 100)),
            Some(part) if is_number => format!("write {}", Percent(part)),
            _ => "write it like 80%".to_owned(),
        };
        return Err(ValueProblem::new(message, help));
    };
    match thousandths(number) {
        Some(part) if part > most => {
            let most = Percent(most);
            Err(ValueProblem::new(format!("`{field}: {text}` is too much"), format!("write at most {most}")))
        }
        Some(part) => Ok(part),
        None => {
            let message = format!("{} is no percentage", shown(text));
            Err(ValueProblem::new(
                message,
                "write digits and `%`, with at most one place after a point, such as 12.5%",
            ))
        }
    }
}

/// Parses `80` as 800, `12.5` as 125.
fn thousandths(number: &str) -> Option<u16> {
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let is_digit = part.len() == 1 && part.bytes().all(|byte| byte.is_ascii_digit());
    let whole = amount::parse(whole).ok().filter(|_| is_digit)?;
    let tenth: u32 = part.parse().ok()?;
    u16::try_from(whole.checked_mul(10)?.checked_add(tenth)?).ok()
}

/// Thousandths, shown as a percentage.
pub(crate) struct Percent<T>(pub(crate) T);

impl<T: Copy + Into<u32>> std::fmt::Display for Percent<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let thousandths: u32 = self.0.into();
        match (thousandths / 10, thousandths % 10) {
            (whole, 0) => write!(f, "{whole}%"),
            (whole, tenth) => write!(f, "{whole}.{tenth}%"),
        }
    }
}

/// Returns ⌊share × number⌋.
pub(super) fn of(share: u16, number: u32) -> u32 {
    // At most 65 times the number.
    u32::try_from(u64::from(share) * u64::from(number) / WHOLE).unwrap_or(u32::MAX)
}

pub(super) const WHOLE: u64 = 1_000;

pub(crate) const WHOLE_SHARE: u16 = 1_000;
