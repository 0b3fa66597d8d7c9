// Users and roles of a database. What a helper does not name goes to the server as it is.

DB.prototype._userCommand = function (command, argument, fields, writeConcern) {
  const document = Object.assign({[command]: argument}, fields, writeConcern && {writeConcern});
  return okOrThrow(this.runCommand(document));
};

DB.prototype.createUser = function (user, writeConcern) {
  if (typeof user !== 'object' || user === null || typeof user.user !== 'string') {
    throw new Error('Expected a document with a user, as {user: "ann", pwd: passwordPrompt(), roles: []}');
  }
  const {user: name, ...fields} = user;
  return this._userCommand('createUser', name, fields, writeConcern);
};
DB.prototype.updateUser = function (name, fields, writeConcern) {
  return this._userCommand('updateUser', name, fields, writeConcern);
};
DB.prototype.changeUserPassword = function (name, pwd, writeConcern) {
  return this._userCommand('updateUser', name, {pwd}, writeConcern);
};
DB.prototype.dropUser = function (name, writeConcern) {
  return this._userCommand('dropUser', name, {}, writeConcern);
};
DB.prototype.dropAllUsers = function (writeConcern) {
  return this._userCommand('dropAllUsersFromDatabase', 1, {}, writeConcern);
};
DB.prototype.grantRolesToUser = function (name, roles, writeConcern) {
  return this._userCommand('grantRolesToUser', name, {roles: [].concat(roles)}, writeConcern);
};
DB.prototype.revokeRolesFromUser = function (name, roles, writeConcern) {
  return this._userCommand('revokeRolesFromUser', name, {roles: [].concat(roles)}, writeConcern);
};
DB.prototype.getUsers = function (options) {
  return this._userCommand('usersInfo', 1, options).users;
};
DB.prototype.getUser = function (name, options) {
  return this._userCommand('usersInfo', name, options).users[0] || null;
};

DB.prototype.createRole = function (role, writeConcern) {
  if (typeof role !== 'object' || role === null || typeof role.role !== 'string') {
    throw new Error('Expected a document with a role, as {role: "clerk", privileges: [], roles: []}');
  }
  const {role: name, ...fields} = role;
  return this._userCommand('createRole', name, fields, writeConcern);
};
DB.prototype.updateRole = function (name, fields, writeConcern) {
  return this._userCommand('updateRole', name, fields, writeConcern);
};
DB.prototype.dropRole = function (name, writeConcern) {
  return this._userCommand('dropRole', name, {}, writeConcern);
};
DB.prototype.dropAllRoles = function (writeConcern) {
  return this._userCommand('dropAllRolesFromDatabase', 1, {}, writeConcern);
};
DB.prototype.grantRolesToRole = function (name, roles, writeConcern) {
  return this._userCommand('grantRolesToRole', name, {roles: [].concat(roles)}, writeConcern);
};
DB.prototype.revokeRolesFromRole = function (name, roles, writeConcern) {
  return this._userCommand('revokeRolesFromRole', name, {roles: [].concat(roles)}, writeConcern);
};
DB.prototype.grantPrivilegesToRole = function (name, privileges, writeConcern) {
  return this._userCommand('grantPrivilegesToRole', name, {privileges: [].concat(privileges)}, writeConcern);
};
DB.prototype.revokePrivilegesFromRole = function (name, privileges, writeConcern) {
  return this._userCommand('revokePrivilegesFromRole', name, {privileges: [].concat(privileges)}, writeConcern);
};
DB.prototype.getRoles = function (options) {
  return this._userCommand('rolesInfo', 1, options).roles;
};
DB.prototype.getRole = function (name, options) {
  return this._userCommand('rolesInfo', name, options).roles[0] || null;
};
