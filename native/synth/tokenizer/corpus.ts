/** Text from which the merges of synthetic tokenizers are trained: plain English, some code, some numbers. */
export const corpus = `
The cluster wakes before the people do. Jobs wait in the queue, and the scheduler looks at every one of them in turn:
how many nodes it wants, how long it will run, and whether something shorter could pass in front of it without harm.
A model that was loaded yesterday is still in memory, and the first question of the morning is answered at once.

What is the capital of France? The capital of France is Paris. How many days are there in a week? There are seven days
in a week. Why is the sky blue? Because air scatters short waves of light more than long ones. Who wrote this text?
Nobody in particular; it was written so that a small program could learn which letters stand together often.

You are a helpful assistant. Answer the question of the user in a few words. If you do not know the answer, say that
you do not know it. Do not make things up. Use the tools that you are given when they help, and say what you found.
Please write a short story about a lighthouse keeper who finds a letter. Please explain how a computer stores a number.
Summarize the following text in three sentences. Translate this sentence into German. Give me a list of five ideas.

Once upon a time there was a lighthouse on a rock in the sea. The keeper lived alone with a cat and a clock. Every
evening he climbed the stairs, lit the lamp, and wrote one line into a book: the wind, the weather, the ships. One
morning he found a letter under the door, although no boat had come during the night. The letter said: thank you for
the light. He read it again and again, then he put it into the book, and from that day on he never felt alone.

A computer stores a number as a row of bits. Each bit is either zero or one, and each place is worth twice as much as
the place to its right. With eight bits you can count from 0 to 255; with sixteen bits from 0 to 65535. Fractions are
stored with an exponent, like the notation that scientists use: 6.02 times ten to the power of 23. Some values cannot
be stored exactly, and so the result of a long computation depends a little on the order in which it was done.

Large language models read text as a sequence of tokens. A token is a piece of a word, a whole word, or a sign. For
every position the model computes a list of scores, one for each token of its vocabulary, and the next token is chosen
from the best of them. Attention lets each position look back at all earlier positions. The keys and values of the
earlier positions are kept in a cache, so that they need not be computed again. Memory bandwidth limits how fast one
sequence can be decoded; with many sequences in one batch the same weights serve all of them.

The first node has four devices, the second node has two. When a job reaches its time limit, another one has to take
over before it ends. Requests that were running move to the other node, and the person who asked the question sees no
gap. Under pressure the system refuses new work early instead of failing late. Every error says what happened, because
of what, and what to do about it. Measure first, then change one thing, then measure again; keep what is faster and
remove what is not needed. Good software is quiet: it does its work, and when it cannot, it tells you clearly.

def greet(name):
    return "Hello, " + name + "!"

for index in range(10):
    print(index, greet("world"))

function add(first, second) { return first + second; }
const values = [1, 2, 3, 4, 5].map((value) => value * value);
if (values.length > 3) { console.log("there are more than three values"); } else { throw new Error("too few"); }
{"name": "get_weather", "arguments": {"city": "Zurich", "unit": "celsius"}}
SELECT name, count(*) FROM requests WHERE day = '2024-05-17' GROUP BY name ORDER BY count(*) DESC LIMIT 10;

In spring the river rises and the fields along the water turn green. The farmer opens the gates one after another and
watches the water find its way. Children run over the bridge on their way to school. In summer the days are long and
the evenings are warm; people sit outside and talk until the stars appear. In autumn the leaves turn yellow and red,
the apples are gathered, and smoke rises from the chimneys. In winter everything is quiet under the snow, and the
nights belong to those who like to read. So the year goes round, and each of us grows a little older and perhaps wiser.

To bake bread you need flour, water, salt and yeast. Mix everything in a bowl, knead the dough for ten minutes, cover
it and let it rest for an hour. Then form a loaf, let it rest again, and bake it in a hot oven until it sounds hollow
when you knock on it. Do not cut it while it is hot. Bread is best on the day after, with butter and a little honey.

Mathematics is the art of saying the same thing in different ways until it becomes obvious. Let x be a number such that
x + 3 = 10; then x = 7. The area of a circle with radius r is 3.14159 times r squared. If all cats are animals and Tom
is a cat, then Tom is an animal. A proof is a chain of such small steps, none of which can be doubted.

The train from Basel to Milan leaves at 10:28 and arrives at 14:37. A ticket costs 79 francs in second class. Passengers
are asked to keep their luggage with them at all times. We apologize for the delay and thank you for your patience.
Dear friend, I hope that this message finds you well. It has been a long time since we talked. With kind regards, Anna.
`;
