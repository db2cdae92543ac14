"""What the training prompts are about: word lists that `prompts.py` crosses with its templates."""

from __future__ import annotations


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


def _commas(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.replace("\n", " ").split(",") if part.strip())


TASKS = _lines("""
checks whether a number is prime
reverses the words of a sentence
finds the largest and the smallest value of a list
merges two sorted lists
removes duplicates from a list but keeps the order
computes the factorial of a number
checks whether a string is a palindrome
sorts a list of dictionaries by a key
flattens a nested list
converts Celsius to Fahrenheit
computes the greatest common divisor of two numbers
reads a CSV file and sums a column
splits a list into chunks of equal size
validates an email address
generates a random password
finds all files with a given extension in a folder
counts the vowels in a string
computes the mean, median and mode of numbers
performs a binary search
implements bubble sort
implements quicksort
implements merge sort
transposes a matrix
multiplies two matrices
checks whether brackets are balanced
converts a decimal number to binary
converts a Roman numeral to an integer
finds the longest common prefix of strings
groups a list of words by their first letter
rotates a list by n places
finds the second largest number in a list
computes the power of a number without using the operator
checks whether two strings are anagrams
downloads a web page and prints its title
parses a date and returns the weekday
computes the distance between two points
simulates rolling two dice
draws a triangle of stars
prints a multiplication table
finds missing numbers in a sequence
encrypts text with a Caesar cipher
compresses a string by run length
finds the intersection of two lists
builds a dictionary from two lists
measures how long a function takes
retries an operation that may fail
writes a dictionary to a JSON file
reads a configuration file
logs messages with a timestamp
caches the results of a function
filters even numbers out of a list
capitalizes every word of a title
truncates a long text with an ellipsis
computes compound interest
converts seconds to hours, minutes and seconds
finds the most common element of a list
validates a credit card number with the Luhn algorithm
computes the sum of the digits of a number
lists all permutations of a string
solves the quadratic equation
traverses a binary tree in order
implements a linked list with insert and delete
implements a queue with two stacks
implements a priority queue
finds the shortest path in a graph
detects a cycle in a linked list
counts the lines of a file
renames all files in a folder
sends a GET request and handles errors
parses command line arguments
converts a list of numbers to a comma separated string
replaces every occurrence of a word in a file
generates the first n square numbers
estimates pi with random points
plays rock, paper, scissors against the user
guesses a number between one and a hundred
keeps a shopping list
models a library with books and members
models a car with speed and fuel
models a rectangle with area and perimeter
keeps track of the scores of players
manages a to-do list
manages a phone book
converts between currencies
formats a number with thousands separators
""")
LANGUAGES = (
    "Python",
    "Python",
    "Python",
    "Python",
    "JavaScript",
    "Java",
    "C",
    "C++",
    "Go",
    "Rust",
    "Bash",
    "SQL",
)
CONCEPTS = _commas("""
gravity, photosynthesis, electricity, magnetism, evaporation, the water cycle, plate tectonics, volcanoes,
earthquakes, hurricanes, rainbows, tides, eclipses, the seasons, black holes, comets, the solar system,
evolution, DNA, antibiotics, vaccines, the immune system, digestion, the heart, the lungs, memory, sleep,
dreams, inflation, interest rates, supply and demand, taxes, insurance, the stock market, democracy,
the Roman Empire, the Renaissance, the industrial revolution, the French Revolution, the Silk Road,
the printing press, the compass, steam engines, electric motors, batteries, solar panels, wind turbines,
nuclear power, recycling, climate change, the ozone layer, coral reefs, rainforests, deserts, glaciers,
bees, ants, whales, owls, penguins, mushrooms, bread baking, fermentation, coffee, chocolate, cheese,
pasta, spices, chess, football, the Olympic Games, marathon running, yoga, meditation, jazz, opera,
photography, watercolor painting, perspective in art, poetry, novels, theater, the alphabet, Latin,
probability, prime numbers, the Pythagorean theorem, calculus, statistics, machine learning,
neural networks, computer viruses, encryption, passwords, the internet, search engines, databases,
operating systems, compilers, version control, cloud computing, robots, satellites, GPS, radar,
microscopes, telescopes, thermometers, bridges, skyscrapers, concrete, glass, steel, paper, silk, soap
""")
PAIRS = _lines("""
a comet and an asteroid
weather and climate
a list and a tuple
a crocodile and an alligator
a process and a thread
TCP and UDP
mass and weight
a simile and a metaphor
debt and equity
a lake and a pond
stress and anxiety
an alpaca and a llama
HTTP and HTTPS
speed and velocity
a novel and a short story
butter and margarine
a city and a town
jam and jelly
renting and buying a home
a stack and a queue
an atom and a molecule
a hypothesis and a theory
frogs and toads
moths and butterflies
baking soda and baking powder
a credit card and a debit card
RAM and storage
empathy and sympathy
yoga and pilates
a violin and a viola
""")
GOALS = _lines("""
learn a new language
save money every month
start a vegetable garden
run five kilometers
read more books
write a cover letter
prepare for a job interview
make friends in a new city
keep a house plant alive
cook dinner for six people
stop procrastinating
plan a trip to Japan
adopt a dog
build a bookshelf
fix a flat bicycle tire
remove a coffee stain
write a birthday speech
organize a small office
study for a math test
teach a child to swim
take better photos
reduce screen time
drink more water
clean a kitchen quickly
negotiate a salary
learn to play the guitar
start a small business
pack for a camping trip
wake up earlier
give honest feedback to a colleague
handle a difficult customer
choose a laptop
choose a bicycle
improve handwriting
speak in front of a large audience
bake a chocolate cake
make a good cup of tea
grow tomatoes on a balcony
deal with a noisy neighbor
apologize to a friend
""")
THINGS = _commas("""
a movie, a restaurant, a recipe, a customer, an employee, a product, a flight, a hotel room, a song, a planet,
a dog, a student, a course, a car, a concert, a museum, a bicycle, a phone, a city, a football team,
a weather report, a blog post, an invoice, an order, a shipment, a meeting, a task, a library card,
a patient, a painting, a tree, a river, a mountain, a train ticket, a video game, a laptop, a bank transfer,
a gym workout, a newsletter, a survey, a garden plant, a coffee shop, a podcast episode, a house for sale
""")
FIELDS = _commas("""
name, title, id, price, rating, year, description, color, size, weight, address, phone, email, date, status,
category, tags, quantity, country, language, duration, author, owner, notes, score, currency, start, end
""")
SUBJECTS = _commas("""
a dragon who is afraid of fire, a clock that runs backwards, two sisters and a secret garden,
an old sailor and a talking parrot, a robot that learns to paint, a village without shadows,
a boy who can hear plants, the last train of the night, a cat that guards a library, a baker who bakes dreams,
a detective in a flooded city, a girl who collects storms, a lonely satellite, a wolf who becomes a teacher,
the map under the floor, a violin that remembers, an island that moves, a king without a crown,
a spaceship that lost its way, a forgotten umbrella, a chess game between ghosts, a tailor of clouds,
a mountain that sings, an inventor and her clumsy assistant, the day the rivers stopped, a door in a tree,
a fox in a snowy forest, a summer at the sea, an astronaut who plants a garden on Mars, a shy magician,
autumn leaves, the smell of rain, a busy market, an empty playground, the night sky, a grandmother's kitchen,
the ocean at dawn, a long walk home, old photographs, a candle in the window, spring in the mountains,
a broken bridge, the first day of school, a letter never sent, a desert caravan, a winter evening by the fire
""")
NAMES = _commas("""
Maria, Tom, Aisha, Kenji, Olga, Pedro, Nina, Samuel, Ines, Yusuf, Clara, Ravi, Hannah, Diego, Mei, Jonas,
Fatima, Lucas, Elena, Omar, Sofia, Peter, Amara, Felix, Priya, Anton, Lucia, Hugo, Zara, Noah
""")
CITIES = _commas("""
Lisbon, Nairobi, Toronto, Kyoto, Lima, Prague, Cairo, Sydney, Dublin, Hanoi, Oslo, Chicago, Mumbai, Vienna,
Seoul, Athens, Bogota, Warsaw, Denver, Accra
""")
VARIABLES = _commas(
    "data, value, total, count, items, index, text, name, key, size, buffer, node, left, right, start"
)
