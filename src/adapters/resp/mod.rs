//! RESP, the protocol of Redis: HIT, PEEK, CL.THROTTLE, and the commands that clients send on their own.

pub(super) mod throttle;

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::AnswerKind;
use super::bodies::CheckBody;
use super::handler::{BadRequest, HttpHandler};
use super::json::Units;
use super::listen::AdapterPermit;
use crate::protocol::{Mode, Op};

struct RespConnection {
    handler: HttpHandler,
    is_authorized: bool,
    replies: String,
}

/// Serves one connection to its end: one command after the other.
pub(super) async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin>(
    socket: S,
    handler: HttpHandler,
    _permit: AdapterPermit,
    stop: CancellationToken,
) {
    let is_authorized = handler.peer.token.is_none();
    let mut connection = RespConnection { handler, is_authorized, replies: String::new() };
    let _ = connection.serve(socket, &stop).await;
}

impl RespConnection {
    async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        mut socket: S,
        stop: &CancellationToken,
    ) -> std::io::Result<()> {
        let mut received = Vec::<u8>::new();
        loop {
            let mut consumed = 0;
            let is_last = loop {
                if self.replies.len() >= REPLY_BYTES_MAX {
                    self.send_replies(&mut socket).await?;
                }
                let rest = received.get(consumed..).unwrap_or_default();
                match split_command(rest) {
                    Ok((arguments, length)) => {
                        consumed += length;
                        if self.answer(&arguments).await {
                            break true;
                        }
                    }
                    Err(Unsplit::More) if rest.len() <= COMMAND_BYTES_MAX => break stop.is_cancelled(),
                    Err(Unsplit::More) => break self.reply(true, Err(TOO_LONG.to_owned())),
                    Err(Unsplit::Broken(fault)) => break self.reply(true, Err(fault.to_owned())),
                }
            };
            self.send_replies(&mut socket).await?;
            received.drain(..consumed);
            // A client that always writes more would be served for as long as the runtime lets it.
            tokio::task::yield_now().await;
            received.shrink_to(received.len() + READ_BYTES);
            let patience = if self.is_authorized { IDLE_MAX } else { NO_AUTH_MAX };
            let read = async { timeout(patience, socket.read_buf(&mut received)).await? };
            tokio::select! {
                read = read, if !is_last => if read? == 0 { return Ok(()) },
                () = stop.cancelled(), if !is_last => {}
                else => return Ok(()),
            }
        }
    }

    async fn send_replies(&mut self, socket: &mut (impl AsyncWrite + Unpin)) -> std::io::Result<()> {
        timeout(UNREAD_MAX, socket.write_all(self.replies.as_bytes())).await??;
        self.replies.clear();
        Ok(())
    }

    /// Adds a reply, of a request (`is_check`) or of another command. Returns whether it is the last: it is an error.
    fn reply(&mut self, is_check: bool, answer: Result<String, String>) -> bool {
        let is_error = answer.is_err();
        self.replies += &answer.unwrap_or_else(|message| {
            self.handler.state.counters.count(AnswerKind::Rejected);
            if is_check {
                self.handler.state.report_unjudged(&message);
            }
            format!("-{}", message.replace(char::is_control, " "))
        });
        self.replies += "\r\n";
        is_error
    }

    /// Answers one command. Returns whether it is the last of the connection.
    async fn answer(&mut self, arguments: &[&[u8]]) -> bool {
        let Some((name, rest)) = arguments.split_first() else { return false };
        let name = name.to_ascii_uppercase();
        let ok = || Ok("+OK".to_owned());
        let answer = match (&*name, rest) {
            (b"QUIT", _) => ok(),
            (b"AUTH", [token] | [_, token]) => self.authorize(token).and_then(|()| ok()),
            (b"HELLO", options) => self.hello(options),
            _ if !self.is_authorized => Err(NO_AUTH.to_owned()),
            (b"PING", []) => Ok("+PONG".to_owned()),
            (b"HIT", [domain, pairs @ ..]) => self.check(Op::Hit, domain, pairs).await,
            (b"PEEK", [domain, pairs @ ..]) => self.check(Op::Peek, domain, pairs).await,
            (b"CL.THROTTLE", [key, numbers @ ..]) => self.throttle(key, numbers),
            (b"SELECT", [b"0"]) => ok(),
            (b"CLIENT", [word, ..]) if is(word, "SETINFO") || is(word, "SETNAME") => ok(),
            (b"COMMAND", _) => Ok("*0".to_owned()),
            _ => Err(format!("ERR this is no command; {HELP}")),
        };
        // Clients send commands of Redis on their own.
        self.reply([&b"HIT"[..], b"PEEK", b"CL.THROTTLE"].contains(&&*name), answer);
        *name == *b"QUIT"
    }

    /// Checks a token. On the Unix socket the user decides instead.
    fn authorize(&mut self, given: &[u8]) -> Result<(), String> {
        self.is_authorized = self.handler.peer.may_ask(Some(given));
        let fault = || "WRONGPASS help: AUTH, and the text of `token_file`".to_owned();
        self.is_authorized.then_some(()).ok_or_else(fault)
    }

    fn hello(&mut self, options: &[&[u8]]) -> Result<String, String> {
        let auth = options.windows(3).find(|words| words.first().is_some_and(|word| is(word, "AUTH")));
        if let Some([_, _, token]) = auth {
            self.authorize(token)?;
        }
        let head = match options.first().copied() {
            _ if !self.is_authorized => return Err(NO_AUTH.to_owned()),
            None | Some(b"2") => "*8\r\n+proto\r\n:2",
            Some(b"3") => "%4\r\n+proto\r\n:3",
            _ => return Err("NOPROTO help: HELLO 2, or HELLO 3".to_owned()),
        };
        let server = concat!("+server\r\n+tidegate\r\n+version\r\n+", env!("CARGO_PKG_VERSION"));
        Ok(format!("{head}\r\n{server}\r\n+role\r\n+master"))
    }

    /// Asks for a decision; the request does not wait.
    async fn check(&self, op: Op, domain: &[u8], pairs: &[&[u8]]) -> Result<String, String> {
        let (pairs, rest) = pairs.as_chunks();
        let (costs, pairs): (Vec<&[&[u8]; 2]>, Vec<_>) = pairs.iter().partition(|[key, _]| is(key, "COST"));
        let cost = match *costs {
            [] => 1,
            // A cost beyond 64 bits is judged like the largest, and refused for good.
            [[_, cost]] => integer(cost).or_else(|fault| digits_max(cost).ok_or(fault))?,
            _ => return Err(format!("ERR there is more than one COST; {HELP}")),
        };
        let ([], Ok(cost)) = (rest, u64::try_from(cost)) else {
            return Err(format!("ERR a value is missing, or the cost is negative; {HELP}"));
        };
        let pairs = pairs.iter().map(|[key, value]| (text(key), text(value)));
        let mut body = CheckBody::hit(&text(domain), Vec::new());
        (body.descriptors, body.cost) = (vec![pairs.collect()], Some(Units::Requests(cost)));
        let decision = self.handler.decide(op, None, &body).await.map_err(error)?;
        let retry = decision.retry_after.filter(|_| !decision.allowed);
        let [retry, reset] = [retry, decision.reset_after].map(|time| Some(time?.0.div_ceil(1_000_000)));
        let numbers = [Some(u64::from(!decision.allowed)), decision.limit, decision.remaining, retry, reset];
        let numbers = numbers.map(|number| number.map_or(-1, u64::cast_signed));
        let verdict = if decision.degraded { "degraded" } else { decision.verdict.name() };
        Ok(array(&numbers, &[&decision.rule.unwrap_or_default(), verdict]))
    }

    /// Judges a request by its own quota, in the mode of the daemon.
    fn throttle(&self, key: &[u8], numbers: &[&[u8]]) -> Result<String, String> {
        let numbers = numbers.iter().map(|number| integer(number)).collect::<Result<Vec<_>, _>>()?;
        let (quota, cost) = match *numbers {
            [burst, count, period] => ([burst, count, period], 1),
            [burst, count, period, cost] if cost >= 0 => ([burst, count, period], cost.unsigned_abs()),
            _ => return Err(format!("ERR a number is missing or negative; {HELP}")),
        };
        self.handler.check_domain(DOMAIN).map_err(error)?;
        let (state, user) = (&self.handler.state, self.handler.peer.user);
        let Some(mode) = state.connector.mode(DOMAIN, user) else {
            return Err(format!("ERR `resp` is not open to user {user}; help: `domains.resp.uids`"));
        };
        let mut table = state.throttle.lock();
        let answer = table.judge(key, quota, cost, state.clock.now().at);
        let mut answer = answer.map_err(|fault| format!("ERR {fault}; {HELP}"))?;
        state.counters.evictions.store(table.buckets.evictions, Ordering::Relaxed);
        if mode != Mode::Enforce {
            (answer[0], answer[3]) = (0, -1);
        }
        state.counters.count(if answer[0] == 0 { AnswerKind::Allowed } else { AnswerKind::Refused });
        Ok(array(&answer, &[]))
    }
}

fn array(numbers: &[i64], texts: &[&str]) -> String {
    let numbers = numbers.iter().map(|number| format!("\r\n:{number}"));
    let texts = texts.iter().map(|text| format!("\r\n${}\r\n{text}", text.len()));
    let elements: Vec<String> = numbers.chain(texts).collect();
    format!("*{}{}", elements.len(), elements.concat())
}

fn error(BadRequest(_, message): BadRequest) -> String {
    format!("ERR {message}")
}

fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

/// Returns the largest integer for digits that say a larger one.
fn digits_max(digits: &[u8]) -> Option<i64> {
    (!digits.is_empty() && digits.iter().all(u8::is_ascii_digit)).then_some(i64::MAX)
}

fn integer(digits: &[u8]) -> Result<i64, String> {
    let number = str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| format!("ERR a number is not an integer; {HELP}"))
}

/// Returns a text of the daemon's protocol, which is UTF-8: other bytes are escaped.
fn text(bytes: &[u8]) -> String {
    str::from_utf8(bytes).map_or_else(|_| bytes.escape_ascii().to_string(), str::to_owned)
}

/// The domain of CL.THROTTLE in settings.
const DOMAIN: &str = "resp";

const HELP: &str = "help: HIT domain key value [key value ...] [COST n]; PEEK likewise; \
                    CL.THROTTLE key max_burst count period_in_seconds [cost]";

const NO_AUTH: &str = "NOAUTH over TCP a client sends the token; help: AUTH, and the text of `token_file`";

/// Pools of clients keep connections open between two bursts. A client without the token holds its permit no longer than by HTTP.
const IDLE_MAX: Duration = Duration::from_secs(300);
const NO_AUTH_MAX: Duration = Duration::from_secs(10);

/// As on the socket.
const UNREAD_MAX: Duration = Duration::from_secs(5);

/// Replies that wait while more commands are there.
const REPLY_BYTES_MAX: usize = 16 * 1_024;

/// The buffer that an idle connection keeps.
const READ_BYTES: usize = 1_024;

/// Why there is no command: not all of it is there, or a fault for which the connection closes.
enum Unsplit {
    More,
    Broken(&'static str),
}

/// Splits the first command: an array of bulk strings, or a line of words. Returns its arguments, the first being its name, and
/// its length in bytes. It may be empty.
fn split_command(bytes: &[u8]) -> Result<(Vec<&[u8]>, usize), Unsplit> {
    let mut rest = bytes;
    let line = take_line(&mut rest)?;
    let arguments = match line.strip_prefix(b"*") {
        Some(count) => {
            let broken = "ERR Protocol error: a command has 0 to 36 arguments";
            let count = 0..number(count, ARGUMENTS_MAX, broken, broken)?;
            count.map(|_| take_argument(&mut rest)).collect::<Result<_, _>>()?
        }
        None => line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect(),
    };
    Ok((arguments, bytes.len() - rest.len()))
}

fn take_argument<'b>(rest: &mut &'b [u8]) -> Result<&'b [u8], Unsplit> {
    let broken = "ERR Protocol error: an argument is `$`, its length, and as many bytes";
    let length = take_line(rest)?.strip_prefix(b"$").ok_or(Unsplit::Broken(broken))?;
    let length = number(length, COMMAND_BYTES_MAX, broken, TOO_LONG)?;
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
            Unsplit::Broken("ERR Protocol error: a line has at most 4 KiB")
        } else {
            Unsplit::More
        });
    };
    *rest = after;
    Ok(line.trim_ascii_end())
}

fn number(
    digits: &[u8],
    max: usize,
    broken: &'static str,
    too_large: &'static str,
) -> Result<usize, Unsplit> {
    let number = str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    let fault = if digits_max(digits).is_some() { too_large } else { broken };
    number.filter(|number| *number <= max).ok_or(Unsplit::Broken(fault))
}

/// The name, the domain, 16 pairs, and the cost.
const ARGUMENTS_MAX: usize = 36;

/// Values are shortened to 1 KiB each, and keys are hashed.
const COMMAND_BYTES_MAX: usize = 64 * 1_024;
const TOO_LONG: &str = "ERR Protocol error: a command has at most 64 KiB";

/// A length, or a command of a person.
const LINE_BYTES_MAX: usize = 4 * 1_024;
