//! How a membership is written: in the log, and in the data of a snapshot.

use crate::machine::{Member, Membership};

const FORMAT: u8 = 2;
/// Without the term of the entry that made it.
const FORMAT_WITHOUT_TERM: u8 = 1;

pub(crate) fn encode_membership(membership: &Membership) -> Vec<u8> {
    let mut out = vec![FORMAT];
    out.extend_from_slice(&membership.index.to_le_bytes());
    out.extend_from_slice(&membership.term.to_le_bytes());
    for member in &membership.members {
        out.extend_from_slice(&member.id.to_le_bytes());
        out.push(member.voter as u8);
        out.extend_from_slice(&(member.address.len() as u16).to_le_bytes());
        out.extend_from_slice(member.address.as_bytes());
    }
    out
}

/// None for bytes that `encode_membership` does not write.
pub(crate) fn decode_membership(bytes: &[u8]) -> Option<Membership> {
    let (&format, mut rest) = bytes.split_first()?;
    let index = u64::from_le_bytes(take(&mut rest)?);
    let term = match format {
        FORMAT => u64::from_le_bytes(take(&mut rest)?),
        FORMAT_WITHOUT_TERM => 0,
        _ => return None,
    };
    let mut members: Vec<Member> = Vec::new();
    while !rest.is_empty() {
        let id = u64::from_le_bytes(take(&mut rest)?);
        let [voter] = take(&mut rest)?;
        let length = u16::from_le_bytes(take(&mut rest)?) as usize;
        let (address, after) = rest.split_at_checked(length)?;
        rest = after;
        // Sorted and without repetition, as every member writes it.
        if id == 0 || voter > 1 || members.last().is_some_and(|last| last.id >= id) {
            return None;
        }
        let address = std::str::from_utf8(address).ok()?.to_owned();
        members.push(Member {
            id,
            address,
            voter: voter == 1,
        });
    }
    Some(Membership {
        index,
        term,
        members,
    })
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_membership_survives_and_cut_bytes_do_not_decode() {
        let member = |id, voter| Member {
            id,
            address: format!("host{id}:27017"),
            voter,
        };
        let membership = Membership {
            index: 77,
            term: 5,
            members: vec![member(3, true), member(9, false)],
        };
        let bytes = encode_membership(&membership);
        assert_eq!(decode_membership(&bytes), Some(membership));
        let whole: Vec<usize> = (0..bytes.len())
            .filter(|&cut| decode_membership(&bytes[..cut]).is_some())
            .collect();
        // After the header, and after the first member, there is a shorter membership.
        assert_eq!(whole, vec![17, 17 + 11 + "host3:27017".len()]);
    }
}
