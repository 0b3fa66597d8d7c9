//! Clients for tests.

use banyan_security::role::{Granted, Roles};
use banyan_security::{Privilege, Restrictions, RoleName, UserName};
use bson::RawDocumentBuf;

use crate::identity::{AuthorizedUser, Identity};

/// A client whose user has these built-in roles and privileges.
pub fn identity(roles: &[RoleName], privileges: &[RawDocumentBuf]) -> Identity {
    let built_in = Roles::default().granted(roles);
    let mut all = built_in.privileges().clone();
    for privilege in privileges {
        all.add(Privilege::parse(privilege).unwrap());
    }
    let granted = Granted::new(built_in.roles, all, built_in.restrictions);
    let user = AuthorizedUser {
        name: UserName::new("a", "admin"),
        id: None,
        roles: roles.to_vec(),
        granted,
        restrictions: Restrictions::default(),
    };
    Identity::new(vec![user.into()], 0)
}
