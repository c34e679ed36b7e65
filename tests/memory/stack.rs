//! Reading a frame, however deeply nested, fits a small stack.

use std::thread;

use tidegate::protocol::{DescriptorList, ReplyScratch, decode_first, decode_reply, decode_request};

#[test]
fn reads_any_depth_on_a_small_stack() {
    let nested =
        |marker: &[u8]| [b"\x97\x03\x07\xa3api".as_slice(), &marker.repeat(16_000 / marker.len())].concat();
    // Arrays, maps, and arrays that announce too many items, nested until the frame is full.
    let bombs = [b"\x91".as_slice(), b"\x81\xa1a", b"\xdd\xff\xff\xff\xff"].map(nested);
    let reader = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
        for bomb in &bombs {
            // In the descriptors, and from the first byte on.
            for bytes in [&bomb[..], &bomb[6..]] {
                assert!(decode_request(bytes, &mut DescriptorList::new()).is_err());
                assert!(decode_first(bytes).is_err());
                assert!(decode_reply(bytes, &mut ReplyScratch::default()).is_err());
            }
        }
    });
    reader.unwrap().join().unwrap();
}

/// A sixteenth of the stack of decision threads: a recursion of a thousand levels overflows it.
const STACK_BYTES: usize = 128 << 10;
