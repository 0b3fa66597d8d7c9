//! Clients for tests.

use banyan_security::role::Roles;
use banyan_security::{Privilege, Restrictions, RoleName, UserName};
use bson::RawDocumentBuf;

use crate::identity::{AuthorizedUser, Identity};

/// A client whose user has these built-in roles and privileges.
pub fn identity(roles: &[RoleName], privileges: &[RawDocumentBuf]) -> Identity {
    let mut granted = Roles::default().granted(roles);
    for privilege in privileges {
        granted.privileges.add(Privilege::parse(privilege).unwrap());
    }
    let user = AuthorizedUser {
        name: UserName::new("a", "admin"),
        id: None,
        roles: roles.to_vec(),
        granted,
        restrictions: Restrictions::default(),
    };
    Identity::new(vec![user.into()], 0)
}
