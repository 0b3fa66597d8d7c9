// The status page of mongosh.
console.log(JSON.stringify(sh.status()));
