//! Authentication restrictions: the addresses from which, and at which, a user may authenticate.

use std::net::IpAddr;

use bson::{RawArray, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use crate::field::{self, DefinitionError};

/// A range of addresses in CIDR notation; an address alone is the range of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressRange {
    address: IpAddr,
    prefix_bits: u8,
}

impl AddressRange {
    /// Reads `192.0.2.0/24`, `2001:db8::/32` or an address.
    ///
    /// # Errors
    /// [`DefinitionError::Address`]
    pub fn parse(text: &str) -> Result<AddressRange, DefinitionError> {
        let invalid = || DefinitionError::Address("Invalid IP address in CIDR string".to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = match prefix {
            Some(prefix) => prefix.parse().map_err(|_| invalid())?,
            None => bits_max,
        };
        if prefix_bits > bits_max {
            return Err(invalid());
        }
        Ok(AddressRange {
            address,
            prefix_bits,
        })
    }

    /// An IPv4 address that comes mapped into IPv6 is taken for the IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let shift = |bits_max: u8| u32::from(bits_max - self.prefix_bits);
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(range), IpAddr::V4(address)) => {
                let difference = range.to_bits() ^ address.to_bits();
                difference.checked_shr(shift(32)).unwrap_or(0) == 0
            }
            (IpAddr::V6(range), IpAddr::V6(address)) => {
                let difference = range.to_bits() ^ address.to_bits();
                difference.checked_shr(shift(128)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// One alternative: every list that is given must hold the address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Restriction {
    /// `clientSource`, as it was written and as ranges.
    client_source: Option<Ranges>,
    /// `serverAddress`
    server_address: Option<Ranges>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Ranges(Vec<(String, AddressRange)>);

impl Ranges {
    fn parse(field: &str, value: RawBsonRef<'_>) -> Result<Ranges, DefinitionError> {
        let read = |value: RawBsonRef<'_>| {
            let text = field::string(field, value)?;
            Ok((text.to_owned(), AddressRange::parse(text)?))
        };
        match value {
            RawBsonRef::Array(array) => {
                let ranges: Result<_, DefinitionError> =
                    field::elements(array).map(|value| read(value?)).collect();
                Ok(Ranges(ranges?))
            }
            single => Ok(Ranges(vec![read(single)?])),
        }
    }

    fn contain(&self, address: IpAddr) -> bool {
        self.0.iter().any(|(_, range)| range.contains(address))
    }

    fn to_array(&self) -> RawArrayBuf {
        let mut array = RawArrayBuf::new();
        for (text, _) in &self.0 {
            array.push(text.as_str());
        }
        array
    }
}

impl Restriction {
    fn parse(document: &RawDocument) -> Result<Restriction, DefinitionError> {
        let mut restriction = Restriction::default();
        for item in field::fields(document) {
            let (name, value) = item?;
            let ranges = match name {
                "clientSource" => &mut restriction.client_source,
                "serverAddress" => &mut restriction.server_address,
                _ => {
                    let unknown = format!("authenticationRestrictions.{name}");
                    return Err(DefinitionError::Unknown(unknown));
                }
            };
            *ranges = Some(Ranges::parse(name, value)?);
        }
        if restriction == Restriction::default() {
            return Err(DefinitionError::Empty);
        }
        Ok(restriction)
    }

    fn permits(&self, client: IpAddr, server: IpAddr) -> bool {
        let meets = |ranges: &Option<Ranges>, address| {
            ranges.as_ref().is_none_or(|ranges| ranges.contain(address))
        };
        meets(&self.client_source, client) && meets(&self.server_address, server)
    }

    fn to_document(&self) -> RawDocumentBuf {
        let mut document = RawDocumentBuf::new();
        if let Some(ranges) = &self.client_source {
            document.append(cstr!("clientSource"), ranges.to_array());
        }
        if let Some(ranges) = &self.server_address {
            document.append(cstr!("serverAddress"), ranges.to_array());
        }
        document
    }
}

/// The restrictions of a user or a role, of which one must be met; none restrict nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restrictions(Vec<Restriction>);

impl Restrictions {
    /// Reads `[{clientSource: […], serverAddress: […]}, …]`.
    ///
    /// # Errors
    /// An unknown or ill-typed field, an address that is none, a restriction that is empty.
    pub fn parse(array: &RawArray) -> Result<Restrictions, DefinitionError> {
        field::elements(array)
            .map(|value| Restriction::parse(field::document("authenticationRestrictions", value?)?))
            .collect::<Result<_, _>>()
            .map(Restrictions)
    }

    pub fn to_array(&self) -> RawArrayBuf {
        let mut array = RawArrayBuf::new();
        for restriction in &self.0 {
            array.push(restriction.to_document());
        }
        array
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a client at one address may authenticate at the other, which is the server's.
    pub fn permit(&self, client: IpAddr, server: IpAddr) -> bool {
        self.is_empty() || self.0.iter().any(|one| one.permits(client, server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn ranges_hold_what_shares_their_prefix() {
        let holds = |range: &str, address: &str| {
            AddressRange::parse(range)
                .expect("a range")
                .contains(ip(address))
        };
        assert!(holds("192.0.2.0/24", "192.0.2.255") && !holds("192.0.2.0/24", "192.0.3.0"));
        assert!(holds("192.0.2.1", "192.0.2.1") && !holds("192.0.2.1", "192.0.2.2"));
        assert!(holds("0.0.0.0/0", "203.0.113.9") && !holds("0.0.0.0/0", "::2"));
        assert!(holds("2001:db8::/32", "2001:db8:1::1") && !holds("2001:db8::/32", "2001:db9::"));
        assert!(holds("::/0", "::1") && holds("127.0.0.0/8", "::ffff:127.0.0.1"));
        for wrong in [
            "",
            "a",
            "192.0.2.0/33",
            "192.0.2.0/",
            "192.0.2.0/-1",
            "::/129",
            "1.2.3",
        ] {
            AddressRange::parse(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn one_restriction_must_be_met_and_each_list_of_it() {
        let array = bson::rawbson!([
            { "clientSource": ["10.0.0.0/8"], "serverAddress": ["10.0.0.1"] },
            { "clientSource": ["127.0.0.1"] },
        ]);
        let array = array.as_raw_bson_ref();
        let array = array.as_array().expect("an array");
        let restrictions = Restrictions::parse(array).expect("restrictions");
        assert_eq!(&*restrictions.to_array(), array);
        assert!(restrictions.permit(ip("10.1.1.1"), ip("10.0.0.1")));
        assert!(!restrictions.permit(ip("10.1.1.1"), ip("10.0.0.2")));
        assert!(restrictions.permit(ip("127.0.0.1"), ip("10.0.0.2")));
        assert!(Restrictions::default().permit(ip("127.0.0.1"), ip("10.0.0.2")));
        for wrong in [
            bson::rawbson!([{}]),
            bson::rawbson!([1]),
            bson::rawbson!([{ "clientSource": ["x"] }]),
            bson::rawbson!([{ "clientSource": [1] }]),
            bson::rawbson!([{ "source": ["127.0.0.1"] }]),
        ] {
            let wrong = wrong.as_raw_bson_ref();
            Restrictions::parse(wrong.as_array().expect("an array")).expect_err("no restrictions");
        }
    }
}
