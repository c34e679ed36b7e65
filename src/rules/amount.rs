//! Parser of whole numbers such as `500`. Errors suggest the number that was probably meant.

use super::de::Scalar;
use super::problem::{ValueProblem, shown};
use super::values::is_scalar;

/// Reads a whole number of at least `least`, which is 0 or 1, written without quotes.
pub(crate) fn read_from(Scalar(field, kind, text): Scalar<'_>, least: u32) -> Result<u32, ValueProblem> {
    match parse(text) {
        Ok(_) if kind == "a text" => {
            let message = format!("`{field}` is a number, not the text {}", shown(text));
            Err(ValueProblem::new(message, "write it without quotes"))
        }
        _ if !is_scalar(kind) => {
            Err(ValueProblem::new(format!("`{field}` is a number, not {kind}"), "write a whole number"))
        }
        Ok(0) if least > 0 => Err(ValueProblem::new(format!("`{field}` is 0"), "write at least 1")),
        Ok(number) => Ok(number),
        Err(wrong) => Err(ValueProblem { message: format!("`{field}`: {}", wrong.message), ..wrong }),
    }
}

/// Reads decimal digits only.
pub(crate) fn parse(text: &str) -> Result<u32, ValueProblem> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits && (text == "0" || !text.starts_with('0')) {
        let too_large = |_| {
            ValueProblem::new(format!("{} is too large", shown(text)), format!("write at most {}", u32::MAX))
        };
        return text.parse().map_err(too_large);
    }
    let message = match text.strip_prefix('-') {
        Some(rest) if rest.starts_with(|first: char| first.is_ascii_digit()) => {
            return Err(ValueProblem::new(
                format!("{} is negative", shown(text)),
                "write a number without a sign",
            ));
        }
        _ => format!("{} is not a whole number", shown(text)),
    };
    let help =
        meant(text).map_or("write a whole number in digits".to_owned(), |number| format!("write {number}"));
    Err(ValueProblem::new(message, help))
}

/// Returns the number that was probably meant: `1_000`, `1,000`, `1e3`, `5k`, `0x10`, `+5`, `007`, `100.0`.
fn meant(text: &str) -> Option<u32> {
    let plain: String =
        text.chars().filter(|character| !matches!(character, '_' | ',' | '\'' | ' ' | '+')).collect();
    let plain = plain.to_ascii_lowercase();
    if let Some(hexadecimal) = plain.strip_prefix("0x") {
        return u32::from_str_radix(hexadecimal, 16).ok();
    }
    let (digits, factor) = match plain.strip_suffix(['k', 'm', 'g']) {
        Some(digits) if plain.ends_with('k') => (digits, 1e3),
        Some(digits) if plain.ends_with('m') => (digits, 1e6),
        Some(digits) => (digits, 1e9),
        None => (plain.as_str(), 1.0),
    };
    // Only suggested in a message, so it may be wrong.
    let number = digits.parse::<f64>().ok()? * factor;
    let whole = number >= 1.0 && number <= f64::from(u32::MAX) && number.fract() == 0.0;
    if whole { format!("{number:.0}").parse().ok() } else { None }
}
