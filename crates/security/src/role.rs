//! Roles: their names, their definitions as `admin.system.roles` holds them, and what they inherit.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use bson::{RawDocument, RawDocumentBuf, cstr};

use crate::action::Action;
use crate::allowed::Allowed;
use crate::builtin;
use crate::field::{self, DefinitionError};
use crate::privilege::{self, Privileges};
use crate::resource::Resource;
use crate::restriction::Restrictions;
pub use crate::role_name::RoleName;

/// A user-defined role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleDefinition {
    pub name: RoleName,
    pub privileges: Privileges,
    /// The roles that it inherits directly.
    pub roles: Vec<RoleName>,
    pub restrictions: Restrictions,
}

impl RoleDefinition {
    /// Reads a document of `admin.system.roles`.
    ///
    /// # Errors
    /// A missing, unknown or ill-typed field.
    pub fn parse(document: &RawDocument) -> Result<RoleDefinition, DefinitionError> {
        let (mut role, mut database) = (None, None);
        let (mut privileges, mut roles, mut restrictions) = (None, None, None);
        for item in field::fields(document) {
            let (name, value) = item?;
            match name {
                "_id" => {}
                "role" => role = Some(field::string(name, value)?),
                "db" => database = Some(field::string(name, value)?),
                "privileges" => privileges = Some(value),
                "roles" => roles = Some(field::array(name, value)?),
                "authenticationRestrictions" => restrictions = Some(field::array(name, value)?),
                _ => return Err(field::unknown("role document", name)),
            }
        }
        let role = role.ok_or_else(|| field::missing("role document", "role"))?;
        let database = database.ok_or_else(|| field::missing("role document", "db"))?;
        Ok(RoleDefinition {
            name: RoleName::new(role, database),
            privileges: privilege::parse_field("privileges", privileges)?,
            roles: match roles {
                Some(roles) => RoleName::parse_all(roles, database)?,
                None => Vec::new(),
            },
            restrictions: match restrictions {
                Some(restrictions) => Restrictions::parse(restrictions)?,
                None => Restrictions::default(),
            },
        })
    }

    /// As `admin.system.roles` holds it; `_id` is the database, a dot and the role.
    pub fn to_document(&self) -> RawDocumentBuf {
        let mut document = RawDocumentBuf::new();
        let id = format!("{}.{}", self.name.database, self.name.role);
        document.append(cstr!("_id"), id);
        document.append(cstr!("role"), self.name.role.as_str());
        document.append(cstr!("db"), self.name.database.as_str());
        document.append(cstr!("privileges"), self.privileges.to_array());
        document.append(cstr!("roles"), RoleName::array(&self.roles));
        if !self.restrictions.is_empty() {
            document.append(
                cstr!("authenticationRestrictions"),
                self.restrictions.to_array(),
            );
        }
        document
    }
}

/// All user-defined roles of a deployment.
#[derive(Clone, Debug, Default)]
pub struct Roles(HashMap<RoleName, RoleDefinition>);

/// What a user has through its roles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// Every role, inherited ones included, nearest first.
    pub roles: Vec<RoleName>,
    privileges: Privileges,
    /// Those of every role; each must be met.
    pub restrictions: Vec<Restrictions>,
    index: Index,
}

/// The privileges, arranged when they are first asked for.
#[derive(Clone, Debug, Default)]
struct Index(OnceLock<Allowed>);

/// It says nothing that the privileges do not.
impl PartialEq for Index {
    fn eq(&self, _: &Index) -> bool {
        true
    }
}

impl Eq for Index {}

impl Granted {
    pub fn new(
        roles: Vec<RoleName>,
        privileges: Privileges,
        restrictions: Vec<Restrictions>,
    ) -> Granted {
        Granted {
            roles,
            privileges,
            restrictions,
            index: Index::default(),
        }
    }

    /// Whether the action may be done to the resource.
    pub fn allow(&self, action: Action, resource: Resource<'_>) -> bool {
        let index = self.index.0.get_or_init(|| Allowed::new(&self.privileges));
        index.allow(action, resource)
    }

    pub fn privileges(&self) -> &Privileges {
        &self.privileges
    }
}

impl Roles {
    pub fn get(&self, name: &RoleName) -> Option<&RoleDefinition> {
        self.0.get(name)
    }

    pub fn exists(&self, name: &RoleName) -> bool {
        self.0.contains_key(name) || builtin::exists(name)
    }

    pub fn insert(&mut self, definition: RoleDefinition) {
        self.0.insert(definition.name.clone(), definition);
    }

    /// What the named roles grant together. A name without a role grants nothing: the role may
    /// have been dropped since it was given.
    pub fn granted(&self, direct: &[RoleName]) -> Granted {
        let mut granted = Granted::default();
        let mut seen: HashSet<&RoleName> = direct.iter().collect();
        let mut next: Vec<&RoleName> = direct.iter().collect();
        while !next.is_empty() {
            let mut inherited = Vec::new();
            for name in next {
                granted.roles.push(name.clone());
                if let Some(definition) = self.0.get(name) {
                    granted.privileges.add_all(&definition.privileges);
                    if !definition.restrictions.is_empty() {
                        granted.restrictions.push(definition.restrictions.clone());
                    }
                    inherited.extend(definition.roles.iter().filter(|role| seen.insert(role)));
                } else if let Some(privileges) = builtin::privileges(name) {
                    granted.privileges.add_all(&privileges);
                }
            }
            next = inherited;
        }
        granted
    }

    /// Whether `role` would inherit itself if it inherited `parents`.
    pub fn would_circle(&self, role: &RoleName, parents: &[RoleName]) -> bool {
        self.granted(parents).roles.contains(role)
    }
}

impl FromIterator<RoleDefinition> for Roles {
    fn from_iter<I: IntoIterator<Item = RoleDefinition>>(definitions: I) -> Roles {
        let mut roles = Roles::default();
        for definition in definitions {
            roles.insert(definition);
        }
        roles
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    fn role(document: RawDocumentBuf) -> RoleDefinition {
        let definition = RoleDefinition::parse(&document).expect("a role");
        assert_eq!(definition.to_document(), document);
        definition
    }

    fn family() -> Roles {
        let teller = rawdoc! {
            "_id": "bank.teller", "role": "teller", "db": "bank",
            "privileges": [{
                "resource": { "db": "bank", "collection": "accounts" }, "actions": ["update"],
            }],
            "roles": [{ "role": "read", "db": "bank" }],
        };
        let manager = rawdoc! {
            "_id": "bank.manager", "role": "manager", "db": "bank",
            "privileges": [],
            "roles": [{ "role": "teller", "db": "bank" }, { "role": "gone", "db": "bank" }],
            "authenticationRestrictions": [{ "clientSource": ["127.0.0.0/8"] }],
        };
        [role(teller), role(manager)].into_iter().collect()
    }

    #[test]
    fn a_role_grants_what_it_inherits() {
        let roles = family();
        let granted = roles.granted(&[RoleName::new("manager", "bank")]);
        let names: Vec<_> = granted
            .roles
            .iter()
            .map(|name| name.role.as_str())
            .collect();
        assert_eq!(names, ["manager", "teller", "gone", "read"]);
        let accounts = Resource::Collection {
            database: "bank",
            collection: "accounts",
        };
        assert!(granted.allow(Action::Update, accounts));
        assert!(granted.allow(Action::Find, accounts));
        assert!(!granted.allow(Action::Insert, accounts));
        assert_eq!(granted.restrictions.len(), 1);
    }

    #[test]
    fn circles_are_seen_before_they_are_made_and_end_if_they_exist() {
        let mut roles = family();
        let (teller, manager) = (
            RoleName::new("teller", "bank"),
            RoleName::new("manager", "bank"),
        );
        assert!(roles.would_circle(&teller, std::slice::from_ref(&manager)));
        assert!(roles.would_circle(&teller, std::slice::from_ref(&teller)));
        assert!(!roles.would_circle(&manager, std::slice::from_ref(&teller)));
        let mut circle = roles.get(&teller).expect("it is there").clone();
        circle.roles.push(manager.clone());
        roles.insert(circle);
        assert_eq!(roles.granted(&[manager]).roles.len(), 4);
    }

    #[test]
    fn names_are_read_in_both_forms() {
        let array = bson::rawbson!(["a", { "role": "b", "db": "x", "more": 1 }, { "role": "a", "db": "here" }]);
        let array = array.as_raw_bson_ref();
        let names = RoleName::parse_all(array.as_array().expect("an array"), "here");
        assert_eq!(
            names.expect("names"),
            [RoleName::new("a", "here"), RoleName::new("b", "x")]
        );
        for wrong in [
            bson::rawbson!([1]),
            bson::rawbson!([""]),
            bson::rawbson!([{ "role": "a" }]),
            bson::rawbson!([{ "db": "a" }]),
        ] {
            let array = wrong.as_raw_bson_ref();
            RoleName::parse_all(array.as_array().expect("an array"), "here").expect_err("no names");
        }
    }
}
