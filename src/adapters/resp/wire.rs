//! Splits commands of RESP, the protocol of Redis, from the bytes of a client.

/// Why there is no command: not all of it is there, or a fault for which the connection closes.
pub(super) enum Unsplit {
    More,
    Broken(&'static str),
}

/// Splits the first command: an array of bulk strings, or a line of words. Returns its arguments, the first being its name, and
/// its length in bytes. It may be empty.
pub(super) fn split_command(bytes: &[u8]) -> Result<(Vec<&[u8]>, usize), Unsplit> {
    let mut rest = bytes;
    let line = take_line(&mut rest)?;
    let arguments = match line.strip_prefix(b"*") {
        Some(count) => {
            let count =
                0..number(count, ARGUMENTS_MAX, "ERR Protocol error: a command has 0 to 36 arguments")?;
            count.map(|_| take_argument(&mut rest)).collect::<Result<_, _>>()?
        }
        None => line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect(),
    };
    Ok((arguments, bytes.len() - rest.len()))
}

fn take_argument<'b>(rest: &mut &'b [u8]) -> Result<&'b [u8], Unsplit> {
    let broken = "ERR Protocol error: an argument is `$`, its length, and as many bytes";
    let length = take_line(rest)?.strip_prefix(b"$").ok_or(Unsplit::Broken(broken))?;
    let length = number(length, COMMAND_BYTES_MAX, broken)?;
    let (argument, after) = rest.split_at_checked(length).ok_or(Unsplit::More)?;
    let (end, after) = after.split_at_checked(2).ok_or(Unsplit::More)?;
    *rest = after;
    if end == b"\r\n" { Ok(argument) } else { Err(Unsplit::Broken(broken)) }
}

fn take_line<'b>(rest: &mut &'b [u8]) -> Result<&'b [u8], Unsplit> {
    let end = rest.iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\n');
    let Some((line, after)) = end.and_then(|end| rest.split_at_checked(end + 1)) else {
        let is_long = rest.len() >= LINE_BYTES_MAX;
        return Err(if is_long {
            Unsplit::Broken("ERR Protocol error: a line is too long")
        } else {
            Unsplit::More
        });
    };
    *rest = after;
    Ok(line.trim_ascii_end())
}

fn number(digits: &[u8], max: usize, broken: &'static str) -> Result<usize, Unsplit> {
    let number = str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number.filter(|number| *number <= max).ok_or(Unsplit::Broken(broken))
}

/// The name, the domain, 16 pairs, and the cost.
const ARGUMENTS_MAX: usize = 36;

/// Values are shortened to 1 KiB each, and keys are hashed.
pub(super) const COMMAND_BYTES_MAX: usize = 64 * 1_024;

/// A length, or a command of a person.
const LINE_BYTES_MAX: usize = 4 * 1_024;
