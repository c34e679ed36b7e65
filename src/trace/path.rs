//! Normalizes paths like the middlewares: decoded once, no query, dot segments or repeated slashes.

/// Returns the path of a request's target, which may be a path, a whole URL or garbage.
pub(super) fn path_of(target: &[u8]) -> Vec<u8> {
    let target = target.split(|byte| matches!(byte, b'?' | b'#')).next().unwrap_or_default();
    let decoded = decoded(without_origin(target));
    let is_plain = |pair: &[u8]| !matches!(pair, b"//" | b"/.");
    if decoded.starts_with(b"/") && decoded.windows(2).all(is_plain) {
        return decoded;
    }
    let mut kept: Vec<&[u8]> = Vec::new();
    for segment in decoded.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    let is_directory = [&b"/"[..], b"/.", b"/.."].iter().any(|end| decoded.ends_with(end));
    let mut path = b"/".to_vec();
    path.extend(kept.join(&b'/'));
    if is_directory && !kept.is_empty() {
        path.push(b'/');
    }
    path
}

/// Removes scheme and authority: proxies receive `http://host/path`.
fn without_origin(target: &[u8]) -> &[u8] {
    let Some(colon) = target.windows(3).position(|three| three == b"://") else { return target };
    let is_scheme = target.iter().take(colon).all(u8::is_ascii_alphabetic) && colon > 0;
    let authority = target.get(colon + 3..).unwrap_or_default();
    let path = authority.iter().position(|byte| *byte == b'/');
    match path.and_then(|path| authority.get(path..)) {
        _ if !is_scheme => target,
        Some(path) => path,
        None => b"/",
    }
}

/// Decodes each `%` with two hexadecimal digits once; leaves others as they are.
fn decoded(text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        rest = match rest {
            [b'%', high, low, after @ ..] if let Some(byte) = hex_byte(*high, *low) => {
                decoded.push(byte);
                after
            }
            [byte, after @ ..] => {
                decoded.push(*byte);
                after
            }
            [] => return decoded,
        };
    }
}

pub(super) fn hex_byte(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? << 4 | digit(low)?)
}

#[cfg(test)]
mod tests {
    use super::path_of;

    #[test]
    fn paths_are_as_the_middlewares_send_them() {
        let table = [
            ("/", "/"),
            ("", "/"),
            ("*", "/*"),
            ("/v1/charges", "/v1/charges"),
            ("/v1/charges?limit=3&x=/../y", "/v1/charges"),
            ("/a#b", "/a"),
            ("/v1//charges///x", "/v1/charges/x"),
            ("/v1/./a/../charges", "/v1/charges"),
            ("/../../etc/passwd", "/etc/passwd"),
            ("/a/..", "/"),
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/a/", "/a/"),
            ("//", "/"),
            ("/a/.hidden", "/a/.hidden"),
            ("/a/...", "/a/..."),
            ("/login%20now", "/login now"),
            ("/%2e%2E/v1%2Fcharges", "/v1/charges"),
            // Decoded once only.
            ("/%252e", "/%2e"),
            ("/100%", "/100%"),
            ("/%zz%4", "/%zz%4"),
            ("/%3Fa", "/?a"),
            ("http://example.com/v1?x", "/v1"),
            ("https://example.com", "/"),
            ("/redirect/http://example.com/x", "/redirect/http:/example.com/x"),
            ("example.com:443", "/example.com:443"),
            ("/gr%C3%B6%C3%9Fe", "/größe"),
        ];
        for (target, expected) in table {
            assert_eq!(String::from_utf8(path_of(target.as_bytes())).unwrap(), expected, "{target}");
        }
        assert_eq!(path_of(b"/%ff"), b"/\xff");
    }
}
