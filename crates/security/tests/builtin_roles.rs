//! Built-in roles are held against what the reference answers.

use std::collections::BTreeMap;

use banyan_security::{Privileges, RoleName, builtin};
use bson::RawDocumentBuf;

type Actions = BTreeMap<String, Vec<String>>;

fn of(privileges: &Privileges) -> Actions {
    let line = |resource: RawDocumentBuf| {
        let value: serde_json::Value =
            bson::deserialize_from_slice(resource.as_bytes()).expect("a document");
        value.to_string()
    };
    let entry = |privilege: &banyan_security::Privilege| {
        let actions = privilege.actions.iter();
        (
            line(privilege.resource.to_document()),
            actions.map(|action| action.name().to_owned()).collect(),
        )
    };
    privileges.iter().map(entry).collect()
}

/// Roles by name, from the golden file.
fn expected() -> BTreeMap<String, Actions> {
    let mut roles: BTreeMap<String, Actions> = BTreeMap::new();
    let mut role = String::new();
    for line in include_str!("builtin_roles.golden").lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((resource, actions)) = line.split_once("} ") else {
            line.clone_into(&mut role);
            roles.insert(role.clone(), Actions::new());
            continue;
        };
        let resource: serde_json::Value =
            serde_json::from_str(&format!("{resource}}}")).expect("a resource");
        let mut actions: Vec<String> = actions.split(' ').map(str::to_owned).collect();
        actions.sort();
        roles
            .get_mut(&role)
            .expect("a role comes first")
            .insert(resource.to_string(), actions);
    }
    roles
}

#[test]
fn built_in_roles_grant_what_they_grant_in_the_reference() {
    let expected = expected();
    let count = builtin::IN_EVERY_DATABASE.len() + builtin::IN_ADMIN.len();
    assert_eq!(expected.len(), count);
    for (name, privileges) in expected {
        let (role, database) = name.split_once('@').expect("a name");
        let own = builtin::privileges(&RoleName::new(role, database)).expect("a built-in role");
        let own = of(&own);
        for (resource, actions) in &privileges {
            assert_eq!(own.get(resource), Some(actions), "{name} on {resource}");
        }
        assert_eq!(own.len(), privileges.len(), "{name}: {own:?}");
    }
}

#[test]
fn roles_of_admin_are_in_no_other_database() {
    for role in builtin::IN_ADMIN {
        assert!(!builtin::exists(&RoleName::new(*role, "test")));
        assert!(builtin::exists(&RoleName::new(*role, "admin")));
    }
    assert!(builtin::privileges(&RoleName::new("none", "admin")).is_none());
}
