//! The identity of a host over restarts, copies and damage.

use tidegate::fleet::identity::Identity;

fn marks(machine: &str) -> Vec<Vec<u8>> {
    vec![machine.into(), b"web-1".to_vec(), b"02:42:ac:11:00:02".to_vec()]
}

fn random(byte: u8) -> ([u8; 16], [u8; 8]) {
    ([byte; 16], [byte; 8])
}

#[test]
fn a_restart_is_the_next_life_of_the_same_host() {
    let mut before = Identity::fresh(&marks("m1"), random(1));
    before.hosts = 7;
    for life in 2..50 {
        let kept = before.to_bytes();
        let next = Identity::next(Some(&kept), &marks("m1"), random(life));
        assert_eq!((next.host, next.hosts), (before.host, 7));
        assert!(next.epoch > before.epoch);
        before = next;
    }
}

#[test]
fn a_copy_on_another_machine_is_somebody_else() {
    let kept = Identity::fresh(&marks("m1"), random(1)).to_bytes();
    let same = Identity::next(Some(&kept), &marks("m1"), random(2));
    let copy = Identity::next(Some(&kept), &marks("m2"), random(2));
    assert_ne!(copy.host, same.host);
    assert_eq!(copy, Identity::fresh(&marks("m2"), random(2)), "nothing of it is taken over");
    // Marks split at another boundary give another digest.
    let split = [b"m".to_vec(), b"1web-1".to_vec(), marks("")[2].clone()];
    assert_ne!(Identity::next(Some(&kept), &split, random(2)).host, same.host);
}

#[test]
fn what_is_damaged_is_not_gone_by() {
    let good = Identity::fresh(&marks("m1"), random(1));
    let fresh = Identity::fresh(&marks("m1"), random(9));
    assert_eq!(Identity::next(None, &marks("m1"), random(9)), fresh);
    let kept = good.to_bytes();
    for length in 0..kept.len() {
        assert_eq!(Identity::next(Some(&kept[..length]), &marks("m1"), random(9)), fresh);
        let mut turned = kept.clone();
        turned[length] ^= 1;
        assert_eq!(Identity::next(Some(&turned), &marks("m1"), random(9)), fresh, "byte {length}");
    }
}

#[test]
fn who_has_another_name_keeps_it() {
    let renamed = Identity::fresh(&marks("m1"), random(1)).renamed([5; 16], &marks("m1"));
    assert_eq!(Identity::next(Some(&renamed.to_bytes()), &marks("m1"), random(2)).host, [5; 16]);
}
