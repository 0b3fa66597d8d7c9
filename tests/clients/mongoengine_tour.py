"""What applications do with mongoengine every day, against the address given."""

import datetime
import decimal
import sys
import uuid

import mongoengine as me
from mongoengine import Q, signals

client = me.connect("mongoengine_tour", host=sys.argv[1], uuidRepresentation="standard", serverSelectionTimeoutMS=20000)
client.drop_database("mongoengine_tour")
db = client.mongoengine_tour
seen = []


class Address(me.EmbeddedDocument):
    street = me.StringField()
    zip = me.StringField(regex=r"^\d+$")


class Writer(me.Document):
    meta = {"ordering": ["name"], "indexes": [
        {"fields": ["email"], "unique": True, "sparse": True}, ("age", "-name"), "#name",
        {"fields": ["seen"], "expireAfterSeconds": 3600}, {"fields": ["$bio"], "default_language": "english"}]}
    name = me.StringField(required=True)
    email = me.EmailField()
    age = me.IntField(min_value=0)
    bio = me.StringField()
    seen = me.DateTimeField()
    address = me.EmbeddedDocumentField(Address)
    homes = me.EmbeddedDocumentListField(Address)
    attributes = me.MapField(me.IntField())
    bag = me.DictField()
    balance = me.Decimal128Field()
    uuid = me.UUIDField()
    friends = me.ListField(me.LazyReferenceField("self"))
    editor = me.ReferenceField("self", reverse_delete_rule=me.NULLIFY)
    anything = me.GenericReferenceField()
    photo = me.FileField()
    number = me.SequenceField()
    roles = me.SortedListField(me.StringField())


class Book(me.Document):
    meta = {"allow_inheritance": True, "indexes": [
        {"fields": ["$title", "$content"], "cls": False, "weights": {"title": 10, "content": 2}},
        {"fields": ["title", "writer"], "unique": True}, "tags"]}
    title = me.StringField()
    content = me.StringField()
    writer = me.ReferenceField(Writer, reverse_delete_rule=me.CASCADE)
    tags = me.ListField(me.StringField())
    rank = me.IntField()


class Link(Book):
    url = me.URLField()


class Place(me.Document):
    name = me.StringField()
    flat = me.GeoPointField()
    at = me.PointField()
    area = me.PolygonField()


class Line(me.Document):
    meta = {"max_documents": 3, "max_size": 4096}
    n = me.IntField()


def names(documents):
    return ",".join(document.name for document in documents)


def refused(kind, function):
    try:
        function()
    except kind as error:
        return error
    raise AssertionError("it was not refused")


signals.post_save.connect(lambda _, document, created, **__: seen.append((document.name, created)), sender=Writer, weak=False)

# Documents, and what comes back of them.
ann = Writer(name="Ann", email="ann@x.org", age=30, bio="likes running", address=Address(street="A", zip="1"),
             attributes={"a": 1}, bag={"x": {"y": [1, 2]}}, balance=decimal.Decimal("1.10"), uuid=uuid.UUID(int=5),
             roles=["z", "a"]).save()
bob = Writer(name="Bob", age=12, editor=ann, anything=ann, friends=[ann],
             homes=[Address(street="B"), Address(street="C")]).save()
ann.age = 31
ann.bag["x"]["y"].append(9)
ann.attributes["b"] = 2
ann.roles.append("k")
del ann.bio
ann.save()
ann.reload()
assert seen == [("Ann", True), ("Bob", True), ("Ann", False)], seen
assert (ann.age, ann.bag, ann.attributes, ann.roles, ann.bio) == (
    31, {"x": {"y": [1, 2, 9]}}, {"a": 1, "b": 2}, ["a", "k", "z"], None), ann.to_json()
assert (ann.balance, ann.uuid, ann.number, bob.number) == (decimal.Decimal("1.10"), uuid.UUID(int=5), 1, 2)
indexes = Writer._get_collection().index_information()
assert indexes["seen_1"]["expireAfterSeconds"] == 3600 and indexes["bio_text"]["weights"] == {"bio": 1}, indexes
assert Writer.compare_indexes() == {"missing": [], "extra": []}, Writer.compare_indexes()
for write in (lambda: Writer(name="Cat", email="ann@x.org").save(),
              lambda: Writer.objects(name="Bob").update(set__email="ann@x.org"),
              lambda: Writer.objects(name="Bob").modify(set__email="ann@x.org")):
    assert "email_1" in str(refused(me.NotUniqueError, write))
refused(me.ValidationError, lambda: Writer(name="Cat", age=-1).save())
ann.email = "new@x.org"
refused(me.SaveConditionError, lambda: ann.save(save_condition={"age": 1}))
ann.reload()

# Queries.
for query, expected in (
        (Writer.objects(age__gt=18), "Ann"), (Writer.objects(Q(name__startswith="A") | Q(age__lt=13)), "Ann,Bob"),
        (Writer.objects(name__iexact="ann"), "Ann"), (Writer.objects(address__zip="1"), "Ann"),
        (Writer.objects(homes__0__street="B"), "Bob"), (Writer.objects(homes__match={"street": "C"}), "Bob"),
        (Writer.objects(editor=ann), "Bob"), (Writer.objects(anything=ann), "Bob"), (Writer.objects(friends=ann), "Bob"),
        (Writer.objects(roles__all=["a", "z"]), "Ann"), (Writer.objects(email__exists=False), "Bob"),
        (Writer.objects(age__not__gt=18), "Bob"), (Writer.objects(bag__x__y=9), "Ann"),
        (Writer.objects(name="ANN").collation({"locale": "en", "strength": 2}), "Ann"),
        (Writer.objects.order_by("-age")[:1], "Ann"), (Writer.objects.where("this.age < 20"), "Bob")):
    assert names(query) == expected, (names(query), expected)
fetched = Writer.objects(name="Bob").select_related()[0]
assert (fetched.editor.name, fetched.anything.name, fetched.friends[0].fetch().name) == ("Ann", "Ann", "Ann")
assert list(Writer.objects.scalar("name", "age")) == [("Ann", 31), ("Bob", 12)]
assert Writer.objects.item_frequencies("roles", map_reduce=True) == {"a": 1, "k": 1, "z": 1}
assert (Writer.objects.sum("age"), Writer.objects.average("age")) == (43, 21.5)
refused(me.MultipleObjectsReturned, lambda: Writer.objects.get())

# Updates without documents.
assert Writer.objects(name="Ann").update_one(inc__age=1, push__roles="m", set__bag__q=1) == 1
assert Writer.objects.update(add_to_set__roles="all") == 2
assert sorted(Writer.objects(name="Ann").modify(pull__roles="m", new=True).roles) == ["a", "all", "k", "z"]
assert Writer.objects(name="Ann").update(__raw__=[{"$set": {"age": {"$add": ["$age", 1]}}}]) == 1
assert Writer.objects(name="New").upsert_one(set__age=7).age == 7
assert Writer.objects(name="New").delete() == 1

# Inheritance, text, pipelines, map-reduce.
Book.objects.insert([
    Book(title="Coffee", content="coffee and trees", writer=ann, tags=["a", "b"], rank=1),
    Link(title="Tea", content="tea, not coffee", writer=bob, tags=["b"], rank=2, url="http://t.org")])
refused(me.errors.BulkWriteError, lambda: Book.objects.insert([Book(title="Coffee", writer=ann)]))
assert [type(book) for book in Book.objects.order_by("title")] == [Book, Link] and Link.objects.count() == 1
assert [book.title for book in Book.objects.search_text("coffee").order_by("$text_score")] == ["Coffee", "Tea"]
assert Book.objects.search_text("tea -coffee").count() == 0
ranks = Book.objects(tags="b").aggregate([{"$group": {"_id": "$_cls", "n": {"$sum": "$rank"}}}, {"$sort": {"_id": 1}}])
assert list(ranks) == [{"_id": "Book", "n": 1}, {"_id": "Book.Link", "n": 2}]
counts = Book.objects.map_reduce("function() { this.tags.forEach(function(tag) { emit(tag, 1); }); }",
                                 "function(key, values) { return Array.sum(values); }", "inline")
assert sorted((count.key, count.value) for count in counts) == [("a", 1), ("b", 2)]

# Places.
for name, x, y in (("Graz", 15.44, 47.07), ("Linz", 14.29, 48.31), ("Wien", 16.37, 48.21)):
    Place(name=name, flat=[x, y], at=[x, y], area=[[[x, y], [x + .1, y], [x, y + .1], [x, y]]]).save()
for query, expected in (
        (Place.objects(at__near=[15.5, 47], at__max_distance=160000), "Graz,Wien"),
        (Place.objects(flat__near=[15, 47])[:1], "Graz"),
        (Place.objects(flat__within_distance=[(15, 48), 1.1]).order_by("name"), "Graz,Linz"),
        (Place.objects(flat__within_box=[(15, 47), (17, 49)]).order_by("name"), "Graz,Wien"),
        (Place.objects(at__geo_within_sphere=[(15.5, 47), 0.01]), "Graz"),
        (Place.objects(area__geo_intersects=[15.45, 47.08]), "Graz")):
    assert names(query) == expected, (names(query), expected)

# Files, capped collections, and what goes with a document that is deleted.
ann.reload()
ann.photo.put(b"hello" * 100_000, content_type="text/plain", filename="h.txt")
ann.save()
photo = Writer.objects.get(name="Ann").photo
assert len(photo.read()) == 500_000 and photo.filename == "h.txt"
photo.replace(b"other")
assert photo.read() == b"other"
photo.delete()
assert db.fs.chunks.count_documents({}) == 0
for n in range(5):
    Line(n=n).save()
assert [line.n for line in Line.objects] == [2, 3, 4]
bob.delete()
assert [book.title for book in Book.objects] == ["Coffee"]
client.drop_database("mongoengine_tour")
print("mongoengine complete")
