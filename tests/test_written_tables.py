"""Tables as people write them are read as they were meant, or refused; never as anything else.

Every table is drawn with its truth: which value each cell has is known before it is written, and
is converted by the formulas below, never by abag. Names of columns, forms of labels, ways to write
sequences, columns that mislead, shapes and files are drawn in combination. A refusal is right, and
counted by its words; another antibody, antigen, value, bound or quantity is not. By hand:
``python tests/test_written_tables.py TABLES SEED --jobs J``.
"""

import itertools
import math
import random
import re
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import many
import pandas as pd
import pytest
from marks import in_ci
from reading import read_as_run, read_labels
from trastuzumab import HEAVY, LIGHT

from abag import AbagError

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
ANTIGENS = {
    "HER2": "TQVCTGTDMKLRLPASPETHLDMLRHLYQGCQVVQGNLELTYLPTNASLSFLQDIQEVQGYVLIAHNQVRQVPLQRLR",
    "lysozyme": "KVFGRCELAAAMKRHGLDNYRGYSLGNWVCAAKFESNFNTQATNRNTDGSTDYGILQINSRWWCNDGRTPGSRNLCN",
}
RT = 8.314462618e-3 * 298.15 * math.log(10)
"""Change of dG in kJ/mol per pKd."""


@dataclass
class Meaning:
    """What the cells of a column mean: their value and side, or None where they state none."""

    quantity: str
    """``affinity``, as pKd, or ``value``, as it is written, or ``classes``, as a word."""
    rows: list
    better: str = ""
    """Which values or word are better, if the column tells it."""


@dataclass
class Written:
    """A table with its truth."""

    columns: dict = field(default_factory=dict)
    antibodies: list = field(default_factory=list)
    antigens: list = field(default_factory=list)
    labels: dict = field(default_factory=dict)
    """Meaning of each column that may be the label."""
    options: dict = field(default_factory=dict)
    roles: dict = field(default_factory=dict)
    """The column of each role, which a user names whose table was refused."""
    units: dict = field(default_factory=dict)
    """What ``--label`` has to say of a column, if its name does not."""
    form: tuple | None = None
    """Form and name of a label that is an affinity."""
    drawn: list = field(default_factory=list)
    """What was drawn, for the list of failures."""

    def add(self, name, cells, role):
        self.columns[name] = cells
        self.roles[role] = name


# ---- sequences -----------------------------------------------------------------------------------


CHAIN_NAMES = {
    "heavy": "heavy|VH|HC|VH domain|Heavy Chain|heavy_chain|H chain|VHH|HCVR|variable heavy|Fab H",
    "light": "light|VL|LC|VL domain|Light Chain|light_chain|L chain|VK|LCVR|variable light|Fab L",
    "antibody": "antibody|Ab|mAb|scFv|Fv|antibody_seq|scFv sequence|Ab_seq",
    "antigen": "antigen|Ag|target|antigen_seq|target sequence|Antigen Sequence|ag_sequence",
}
ENDS = ["", "", " sequence", "_seq", " (aa)", "_aa", " AA seq", " protein sequence", " [1]"]
BEFORE = [*[""] * 16, "exp1 ", "mAb ", "final_", "human ", "Table 2: "]


def cased(rng, name):
    """Write the name of a column in one of the usual ways."""
    ways = [str, str, str, str.lower, str.upper, str.title]
    ways += [lambda x: x.replace(" ", "_"), lambda x: x.replace(" ", "."), lambda x: f" {x} "]
    return rng.choice(ways)(name)


def chain_name(rng, role):
    name = rng.choice(CHAIN_NAMES[role].split("|"))
    end = rng.choice(ENDS) if "seq" not in name.lower() else ""
    return cased(rng, f"{rng.choice(BEFORE)}{name}{end}")


def mutants(rng, parent, n):
    """Return distinct single or double mutants, with the names of their mutations."""
    found = {}
    while len(found) < n:
        letters = list(parent)
        names = []
        for at in sorted(rng.sample(range(25, 105), rng.choice([1, 1, 2]))):
            letters[at] = rng.choice([x for x in RESIDUES if x != parent[at]])
            names.append((parent[at], at + 1, letters[at]))
        found["".join(letters)] = names
    return [*found], [*found.values()]


def as_cells(rng, chains):
    """Write the sequences of one column, all in one way."""
    ways = {
        "plain": str, "lower case": str.lower, "stop": lambda x: x and x + "*",
        "lines": lambda x: "\n".join(re.findall(".{1,60}", x)),
        "blocks": lambda x: " ".join(re.findall(".{1,10}", x)),
        "gaps": lambda x: x and f"{x[:30]}--{x[30:]}", "spaces": lambda x: f" {x} ",
        "a stop within": lambda x: x and f"{x[:50]}*{x[51:]}",
        "FASTA": lambda x: x and f">chain 1\n{x}", "quoted": lambda x: x and f'"{x}"',
        "nucleotides": lambda x: "".join(CODONS[residue] for residue in x),
    }  # fmt: skip
    way = rng.choice(["plain"] * 60 + [*ways])
    cells = [*map(ways[way], chains)]
    return cells, way


CODONS = dict(
    zip(RESIDUES, "GCT TGC GAC GAA TTC GGT CAC ATC AAA CTG ATG AAC CCG CAG CGT TCT ACC GTG TGG TAC"
        .split(), strict=True)
)  # fmt: skip
PLACES = {
    "sequential": [*range(1, 121)],
    "kabat": [*range(1, 53), "52a", *range(53, 83), "82a", "82b", "82c", *range(83, 101), "100a",
              "100b", "100c", *range(101, 114)],
    "imgt": [*range(1, 10), *range(11, 31), *range(35, 60), *range(62, 73), *range(74, 129)],
}  # fmt: skip
"""Numbers of the residues of the parent's heavy chain."""
LINKERS = ["GGGGSGGGGSGGGGS", "GSTSGSGKPGSGEGSTKG", "", "GGSGG", "SSGGGGSGGGGS", "GGGGSGGGGSTSAS"]


def write_antibodies(rng, table, n, folder):
    """Add columns of antibodies in one of the usual ways."""
    heavy, mutations = mutants(rng, HEAVY, n)
    light = [LIGHT] * n if rng.random() < 0.5 else mutants(rng, LIGHT, n)[0]
    way = rng.choice(["chains"] * 8 + ["nanobodies", "string", "string", "names", "mutations"])
    if way == "mutations":
        light = [LIGHT] * n
    if way == "nanobodies" or (way == "chains" and rng.random() < 0.1):
        light = [""] * n
    table.antibodies = [*zip(heavy, light, strict=True)]
    ways = []
    if way in ("chains", "nanobodies"):
        roles = {"heavy": heavy, "light": light}
        if way == "nanobodies":
            del roles["light"]
        if rng.random() < 0.04 and len(roles) == 2:
            roles = {"heavy": light, "light": heavy}
            way = "exchanged"
        for role, chains in roles.items():
            cells, how = as_cells(rng, chains)
            table.add(chain_name(rng, role), cells, role)
            ways.append(how)
    elif way == "string":
        mark = rng.choice(["|", ":", "/", " / ", ";", ",", "+", "\n", *LINKERS])
        order = rng.choice([1, 1, -1]) if mark in LINKERS else 1
        cells = [mark.join((h, k)[::order]) for h, k in table.antibodies]
        table.add(chain_name(rng, "antibody"), cells, "antibody")
        ways.append(f"joined by {mark!r}")
    elif way == "names":
        names = [f"mAb-{at + 1}" for at in range(n)]
        table.add(
            rng.choice(["antibody", "Ab", "mAb", "Antibody name", "clone"]), names, "antibody"
        )
        file = pd.DataFrame({"name": names, "VH": heavy, "VL": light})
        file.sample(frac=1, random_state=rng.randrange(99)).to_csv(folder / "abs.csv", index=False)
        table.options["sequences"] = (folder / "abs.csv",)
    else:
        side = rng.choice(["H:", "H:", "H:", "VH:", ""])
        mark = rng.choice([",", ";", "/", " ", "+", ", ", "_"])
        scheme = rng.choice([*PLACES])
        spelled = []
        for of_row in mutations:
            places = [(old, PLACES[scheme][at - 1], new) for old, at, new in of_row]
            spelled.append(mark.join(f"{side}{old}{place}{new}" for old, place, new in places))
        table.options["numbering"] = scheme
        ways.append(f"{scheme} {mark!r}")
        name = rng.choice(["mutations", "Mutation", "variant", "mutant", "aa_mut"])
        table.add(name, spelled, "mutations")
        table.options["parent"] = f"{HEAVY}|{LIGHT}"
    table.drawn.append(f"antibodies: {way} {' '.join(ways)}".strip())


def write_antigens(rng, table, n):
    """Add a column of antigens, or give the one antigen of the table."""
    one = rng.random() < 0.5
    names = [rng.choice([*ANTIGENS][: 1 if one else 2]) for _ in range(n)]
    way = rng.choice(["column"] * 6 + ["option", "names and option", "names beside", "merged"])
    if way.endswith("option"):
        names = ["HER2"] * n
        table.options["antigen"] = ANTIGENS["HER2"]
    table.antigens = [(ANTIGENS[name],) for name in names]
    if way.startswith("names"):
        table.columns[rng.choice(["antigen", "Target", "Ag", "antigen_name"])] = names
    if way in ("column", "names beside", "merged"):
        cells = [ANTIGENS[name] for name in names]
        if way == "merged":
            order = sorted(range(n), key=names.__getitem__)
            for part in (*table.columns.values(), table.antibodies, table.antigens, cells):
                part[:] = [part[at] for at in order]
            cells = [x if at == 0 or x != cells[at - 1] else "" for at, x in enumerate(cells)]
        table.add(chain_name(rng, "antigen"), as_cells(rng, cells)[0], "antigen")
    table.drawn.append(f"antigens: {way}")


# ---- labels --------------------------------------------------------------------------------------


MOLAR = {
    0: "M|mol/L|molar", 3: "mM|mmol/L", 6: "uM|µM|μM|micromolar|umol/L", 12: "pM|picomolar|pmol/L",
    9: "nM|nM|nM|nmol/L|nanomolar|10^-9 M|x10-9 M|× 10⁻⁹ M|1e-9 M",
}  # fmt: skip
KD = (
    "KD|Kd|kd|K_D|KD,app|IC50|EC50|Ki|SPR KD|Fab_KD|affinity KD|Binding affinity|affinity|KD HER2|"
    "Dissociation constant|equilibrium dissociation constant|Kd avg|KD run 2|BLI KD|kinetic KD|"
    "IC 50|Monovalent Kd"
)
JOINED = (
    "{} ({})|{} ({})|{} [{}]|{}_{}|{}, {}|{} / {}|{} in {}|{} {}|{}..{}.|{}({})|{}\n({})|{}: {}"
)
LOGS = {
    1: "log10({} ({}))|log10 {} [{}]|log10_{}_{}|log {} ({})|Log10({}/{})",
    -1: "-log10({} ({}))|-log10 {} [{}]|neg_log10_{}_{}|−log10 {} ({})|-log({}/{})",
}


@dataclass
class Form:
    """A unit of affinities: its names of columns, and its number at a pKd and the inverse."""

    names: list
    write: object
    read: object
    above_is: int = -1
    """Side of the pKd of a number that is a lower bound."""


def named(ways, quantities, units):
    parts = (text.split("|") for text in (ways, quantities, units))
    return [way.format(quantity, unit) for way, quantity, unit in itertools.product(*parts)]


def molar(exponent):
    names = named(JOINED, KD, MOLAR[exponent])
    return Form(names, lambda pkd: 10 ** (exponent - pkd), lambda x: exponent - math.log10(x))


def log_of_molar(exponent, sign):
    names = named(LOGS[sign], "KD|Kd|kd|IC50|EC50", MOLAR[exponent])
    return Form(names, lambda pkd: sign * (exponent - pkd), lambda x: exponent - sign * x, -sign)


FORMS = {
    "M": molar(0), "mM": molar(3), "uM": molar(6), "nM": molar(9), "pM": molar(12),
    "pKd": Form(["pKd", "pKD", "pKi", "pIC50", "pEC50", "pKd (mean)", "-log10(KD)", "-log10 Kd",
                 "neg_log10_kd", "minus log KD", "p(KD)", "pKd_exp", "SPR pKd", "−log10 KD",
                 "-logKD", "pKD (-log10 M)", "neglogKD"],
                lambda pkd: pkd, lambda x: x, 1),
    "log10 M": log_of_molar(0, 1), "log10 uM": log_of_molar(6, 1), "log10 nM": log_of_molar(9, 1),
    "-log10 M": log_of_molar(0, -1), "-log10 nM": log_of_molar(9, -1),
    "ln M": Form(["ln KD (M)", "ln(KD/M)", "ln_kd_M", "lnKd [M]", "loge KD (M)"],
                 lambda pkd: -pkd * math.log(10), lambda x: -x / math.log(10)),
    "ln nM": Form(["ln KD (nM)", "ln(KD/nM)", "ln_kd_nM", "lnKd [nM]"],
                  lambda pkd: (9 - pkd) * math.log(10), lambda x: 9 - x / math.log(10)),
    "1/M": Form(["Ka (1/M)", "KA (M-1)", "KA [M^-1]", "Ka (M⁻¹)", "Ka_per_M", "KA (L/mol)",
                 "association constant (1/M)", "Binding constant (M-1)", "Affinity (M-1)"],
                lambda pkd: 10**pkd, math.log10, 1),
    "1/nM": Form(["Ka (1/nM)", "KA (nM-1)", "KA [nM^-1]", "Ka (nM⁻¹)"],
                 lambda pkd: 10 ** (pkd - 9), lambda x: 9 + math.log10(x), 1),
    "kcal": Form(["dG (kcal/mol)", "ΔG (kcal/mol)", "deltaG [kcal mol-1]", "dG_kcal",
                  "Delta G (kcal)", "binding free energy (kcal/mol)", "dG_kcal_per_mol"],
                 lambda pkd: -pkd * RT / 4.184, lambda x: -x * 4.184 / RT),
    "kJ": Form(["dG (kJ/mol)", "ΔG (kJ/mol)", "deltaG [kJ mol-1]", "Gibbs energy (kJ/mol)"],
               lambda pkd: -pkd * RT, lambda x: -x / RT),
}  # fmt: skip
LABELS = {
    "M": "kd_m", "mM": "kd_mm", "uM": "kd_um", "nM": "kd_nm", "pM": "kd_pm", "pKd": "pkd",
    "log10 M": "log10_kd_m", "log10 uM": "log10_kd_um", "log10 nM": "log10_kd_nm",
    "-log10 M": "pkd", "-log10 nM": "neg_log10_kd_nm", "ln M": "ln_kd_m", "ln nM": "ln_kd_nm",
    "1/M": "ka_per_m", "1/nM": "ka_per_nm", "kcal": "dg_kcal", "kJ": "dg_kj",
}  # fmt: skip
"""What ``--label`` calls these forms."""
STYLES = ["plain"] * 12 + "E e x10^ x10 ⁻ comma comma thousands points minus".split()


def digits(rng, value):
    """Write a number as a person would, in ASCII with a decimal point."""
    if 0.001 <= abs(value) < 1e5:
        text = f"{value:.{rng.choice([1, 2, 3])}f}"
        return text if float(text) else f"{value:.3g}"
    return f"{value:.2e}"


def styled(text, style):
    """Write an ASCII number in a style of the column, which keeps its value."""
    mantissa, _, power = text.partition("e")
    if style in ("E", "e", "x10^", "x10", "⁻") and not power:
        mantissa, _, power = f"{float(text):.6e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".")
    exponent = str(int(power or 0))
    if style in ("E", "e"):
        return f"{mantissa}{style}{exponent}"
    if style == "x10^":
        return f"{mantissa} x 10^{exponent}"
    if style == "x10":
        return f"{mantissa}×10{exponent}"
    if style == "⁻":
        raised = exponent.translate(str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"))
        return f"{mantissa} × 10{raised}"
    if style == "comma":
        return text.replace(".", ",")
    if style == "minus":
        return text.replace("-", "−")
    if style in ("thousands", "points") and not power:
        whole, point, rest = text.partition(".")
        grouped = f"{int(whole):,}{point}{rest}" if whole.lstrip("-") != "0" else text
        return grouped if style == "thousands" else grouped.translate(str.maketrans(",.", ".,"))
    return text


MISSING = "|NA|N/A|-|n.d.|ND|#N/A|nan|not determined|n/a|null|?|--|.|NT|not tested|TBD|#DIV/0!|*"
UNBOUND = (
    "NB|n.b.|no binding|non-binder|N.B.|No Binding|nb|no binding detected|weak|does not bind|BLD|"
    "below LOD"
)
UNCLEAR = (
    "{}-{}|{} – {}|{}; {}|{}/{}|{}, {}|{} ({})|{} [{}]|{}*|{}a|{}†|{} (n=2)|ca. {}|c. {}|about {}|"
    "{}?|{} (low)|({})|{} {}"
)
ABOVE = ">|> |>=|≥|≥ |more than |above |>>|gt |at least |＞|&gt;"
BELOW = "<|< |<=|≤|less than |below |<<|lt |at most |up to |&lt;"


def decorated(rng, text, number, form, unit, plan):
    """Write one cell with its bound, error, unit or footnote; return it with its meaning."""
    exact = (form.read(number), 0)
    kind = rng.choice(plan)
    if kind == "bound":
        is_above = rng.random() < 0.7
        sign = rng.choice((ABOVE if is_above else BELOW).split("|"))
        side = form.above_is * (1 if is_above else -1)
        return f"{sign}{text}{unit}", (exact[0], side)
    if kind == "about":
        return f"~{text}{unit}", exact
    if kind == "error":
        return rng.choice(["{} ± {}", "{}±{}", "{} +/- {}"]).format(text, "0.1"), exact
    if kind == "missing":
        return rng.choice(MISSING.split("|")), None
    if kind == "unbound":
        return rng.choice(UNBOUND.split("|")), "unbound"
    if kind == "unclear":
        return rng.choice(UNCLEAR.split("|")).format(text, text), None
    return f"{text}{unit}", exact


def write_affinity(rng, table, n, *, like=None):
    """Add a column of affinities in one of the forms, or in that and with the name of `like`."""
    unit = rng.choice([*FORMS, "nM", "nM", "nM", "pKd", "pKd", "M"])
    name = cased_label(rng, rng.choice(FORMS[unit].names))
    unit, name = like or (unit, name)
    if as_found(name) in map(as_found, table.labels):
        return
    form = FORMS[unit]
    table.form = (unit, name)
    style = rng.choice(STYLES)
    plan = ["exact"] * rng.choice([3, 10, 10])
    extras = ["bound", "bound", "about", "error", "missing", "unbound", "unclear"]
    plan += rng.choice([[], [], [], [rng.choice(extras)], rng.choices(extras, k=2)])
    if table.labels:  # --no-binding is of the first
        plan = ["exact"]
    in_cells = ""
    if unit in ("M", "mM", "uM", "nM", "pM") and rng.random() < 0.12:
        in_cells = rng.choice([" ", ""]) + unit.replace("u", rng.choice("uµμ"))
        name = rng.choice([name, "KD", "Kd", "affinity", "IC50"])
    cells = []
    rows = []
    for _ in range(n):
        text = digits(rng, form.write(rng.uniform(6, 10.5)))
        cell, meaning = decorated(rng, styled(text, style), float(text), form, in_cells, plan)
        cells.append(cell)
        rows.append(meaning)
    if rng.random() < 0.15 and not table.labels:
        weak = digits(rng, form.write(5.0))
        table.options["no_binding"] = float(weak)
        floor = (form.read(float(weak)), -1)
        # ND and n.d. may be words for either
        rows = [
            floor if row == "unbound" or cell.lower() in ("nd", "n.d.") else row
            for row, cell in zip(rows, cells, strict=True)
        ]
    rows = [None if row == "unbound" else row for row in rows]
    table.columns[name] = cells
    table.labels[name] = Meaning("affinity", rows)
    table.units[name] = LABELS.get(unit)
    table.drawn += [f"label: {unit} {name!r}", f"numbers: {style} {sorted({*plan})} {in_cells}"]


def cased_label(rng, name):
    """Write the name of a label in one of the usual ways, which keep its unit."""
    prefix = rng.choice([""] * 12 + ["exp1 ", "mean ", "Avg. ", "SPR_", "human ", "HER2 ", "WT_2 "])
    if name[0] in "-−":
        prefix = ""
    suffix = rng.choice(
        [""] * 14 + [" (n=3)", " rep1", " 25C", "_mean", " *", ".1", " HER2", " pH 7.4"]
    )
    ways = [str] * 6 + [lambda x: f" {x} ", lambda x: x.replace(" ", "_"), lambda x: f"\ufeff{x}"]
    return rng.choice(ways)(f"{prefix}{name}{suffix}")


VALUES = {
    "higher": "Tm (°C)|Tm1|expression|Titer (mg/L)|log2 enrichment|MFI|-ddG|neg_ddG|NT50|Tagg|"
    "OD450|neutralization (%)|log10 titer|yield (mg)",
    "lower": "ddG (kcal/mol)|ΔΔG|aggregation (%)|viscosity (cP)|HIC RT (min)|polyreactivity score",
    "": "Inhibition (%)|% binding|fold change|KD fold change|escape fraction|IC50 ratio|AUC",
}
"""Names of other quantities by their better values, which the last do not tell."""


def write_value(rng, table, n):
    """Add a column of another quantity than an affinity."""
    better = rng.choice([*VALUES])
    name = rng.choice(VALUES[better].split("|"))
    numbers = [round(rng.uniform(1, 90), 2) for _ in range(n)]
    style = rng.choice(["plain", "plain", "comma", "E", "⁻"])
    column = cased(rng, name)
    table.columns[column] = [styled(str(number), style) for number in numbers]
    table.labels[column] = Meaning("value", [(number, 0) for number in numbers], better)
    table.drawn.append(f"label: value {column!r} {style}")


ANSWERS = (
    "no|yes,No|Yes,N|Y,0|1,False|True,FALSE|TRUE,-|+,nein|ja,non|oui,no|sí,falsch|wahr,faux|vrai,"
    "-1|1,0.0|1.0,×|✓,nej|ja,いいえ|はい"
)
"""Words for no and yes to what the name of the column says, which may be no binding."""
CLASSES = (
    "non-binder|binder,Non-Binder|Binder,negative|positive,neg|pos,not bound|bound,inactive|active,"
    "NB|B,fail|pass,low|high,weak|strong"
)
"""Words that say it themselves."""
BINARY_NAMES = (
    "binder|is_binder|Binding|bound|label|class|binds HER2|neutralizing|hit|Specific|active"
)
NEGATED = (
    "non_binder|not binding|non-neutralizing|loss of binding|escape|No binding|lost binding|"
    "binding lost|fails to bind|polyreactive|doesn't bind|binding abolished"
)


def write_classes(rng, table, n):
    """Add a column of yes and no."""
    are_answers = rng.random() < 0.7
    no, yes = rng.choice((ANSWERS if are_answers else CLASSES).split(",")).split("|")
    is_negated = are_answers and rng.random() < 0.4
    name = rng.choice((NEGATED if is_negated else BINARY_NAMES).split("|"))
    column = cased(rng, name)
    rows = [rng.choice([no, yes]) for _ in range(n)]
    table.columns[column] = rows
    table.labels[column] = Meaning("classes", [(row, 0) for row in rows], no if is_negated else yes)
    if rng.random() < 0.3:
        table.options["columns"] = {"label": column}
        table.options["label"] = "binary"
    table.drawn.append(f"label: classes {column!r} {no}/{yes}")


def write_unit_beside(rng, table, n):
    """Add numbers without a unit, with a column of units, and perhaps one of relations."""
    unit = rng.choice(["M", "uM", "nM", "pM"])
    form = FORMS[unit]
    name = rng.choice(["value", "Standard Value", "KD", "affinity", "Kd value", "measurement"])
    texts = [digits(rng, form.write(rng.uniform(6, 10.5))) for _ in range(n)]
    signs = [rng.choice(["=", "=", ">", "<"]) for _ in range(n)]
    units = [unit] * n
    if rng.random() < 0.2:
        units = [rng.choice(["nM", "uM"]) for _ in range(n)]
    rows = []
    for text, sign, own in zip(texts, signs, units, strict=True):
        rows.append((FORMS[own].read(float(text)), {"=": 0, ">": -1, "<": 1}[sign]))
    table.columns[name] = texts
    table.columns[rng.choice(["unit", "Units", "Standard Units", f"{name} unit"])] = units
    relation = rng.choice(
        ["relation", "Standard Relation", "qualifier", "operator", "censored", ""]
    )
    if relation:
        words = rng.choice([{}, {"=": ""}, {">": "gt", "<": "lt", "=": "eq"}, {">": "'>'"}])
        table.columns[relation] = [words.get(sign, sign) for sign in signs]
    else:
        rows = [(value, 0) for value, _ in rows]
    types = [rng.choice(["KD", "KD", "IC50"]) for _ in range(n)]
    if rng.random() < 0.2 and len({*types}) > 1:
        table.columns[rng.choice(["affinity_type", "Standard Type", "measurement type"])] = types
        if rng.random() < 0.7:  # else one is asked for, unless good rows have but one
            table.options["affinity_type"] = "KD"
            rows = [row if own == "KD" else None for row, own in zip(rows, types, strict=True)]
    table.labels[name] = Meaning("affinity", rows)
    if rng.random() < 0.7:
        table.options["columns"] = {"pkd": name}
    table.drawn.append(f"label: {name!r} in {sorted({*units})} beside, {relation!r}")


def write_rates(rng, table, n):
    """Add rates without an affinity, which nothing may take for one."""
    names = rng.choice([
        ("kon (1/Ms)", "koff (1/s)"), ("ka (1/Ms)", "kd (1/s)"), ("ka", "kd"), ("k_on", "k_off"),
        ("ka (M-1 s-1)", "kd (s-1)"), ("kass", "kdiss"), ("on rate", "off rate"), ("kon", "koff"),
        ("ka1 (1/Ms)", "kd1 (1/s)"), ("KON", "KOFF"), ("kd (10^-4 s-1)", "ka (10^5 M-1s-1)"),
    ])  # fmt: skip
    table.columns[names[0]] = [f"{rng.uniform(1, 9):.2f}E5" for _ in range(n)]
    table.columns[names[1]] = [f"{rng.uniform(1, 9):.2f}E-4" for _ in range(n)]
    table.drawn.append(f"label: rates {names}")


BESIDE = {
    "0.1..3": "KD_error|KD error (nM)|kd_std_nM|KD SE|chi2|Chi² (RU²)|KD_ratio|KD fold|KD (nM) SD|"
    "SD KD (nM)|KD CV%|log KD error|pKd z-score|delta pKd|dpKd|log2FC KD|KD lower (nM)|-TdS|"
    "95% CI low KD (nM)|dH (kcal/mol)",
    "0.5..1": "IC50_fit_r2|R2|R²|binding score|normalized KD|light_intensity",
    "1..900": "antigen_conc|Ag conc (nM)|max conc (nM)|Rmax (RU)|kon (1/Ms)|koff (1/s)|MW (kDa)|"
    "KD parent (nM)|KD_WT_nM|LOD (nM)|KD limit (nM)|KD_pred (nM)|KD target (nM)|KD spec (nM)|"
    "KD cutoff nM|KD mouse (nM)|Ab conc (ug/mL)|EC20 (nM)|control KD (nM)|sequence length",
    "5..9": "pKa|pI|predicted pKd|pKd_reference|pH",
    "1|2|3": "kd_rank|KD rank|n_mutations|KD_replicates|KD bin|Kd_is_greater|temperature",
    "SPR|BLI": "KD method|well|antibody_format|antigen_species|Comment|date|light_isotype",
    "SRWGGDGFYAMDY|ARWGGDGFYAMDY": "CDRH3|HCDR3_aa|heavy cdr3",
    "IGHV3-66*01|IGHV1-2*02": "VH gene|v_call_heavy|heavy_v_gene",
    HEAVY: "heavy_germline|VH parent",
    LIGHT: "light_wt|germline light",
}
"""Cells of columns that are named like those of a role, and are none."""


def write_beside(rng, table, n):
    """Add columns that mislead."""
    for kind in rng.choices([*BESIDE], k=rng.choice([0, 0, 1, 2, 4])):
        name = rng.choice(BESIDE[kind].split("|"))
        if name in table.columns:
            continue
        low, _, high = kind.partition("..")
        cells = [rng.choice(kind.split("|")) for _ in range(n)]
        if high:
            cells = [f"{rng.uniform(float(low), float(high)):.3g}" for _ in range(n)]
        table.columns[name] = cells
        table.drawn.append(f"beside: {name!r}")


def write_matrix(rng, table, folder):
    """Write a column of labels per antigen, whose sequences are in a file."""
    unit = rng.choice(["nM", "pM", "uM", "pKd", "M"])
    header = "{}" if unit == "pKd" else rng.choice(["{}", "{} (UNIT)", "{} KD (UNIT)", "{}_UNIT"])
    pairs = []
    for antigen, chain in ANTIGENS.items():
        texts = []
        for antibody in table.antibodies:
            text = digits(rng, FORMS[unit].write(rng.uniform(6, 10.5)))
            if rng.random() < 0.1:
                text = ""  # not measured
            else:
                pairs.append((antibody, (chain,), (FORMS[unit].read(float(text)), 0)))
            texts.append(text)
        table.columns[header.format(antigen).replace("UNIT", unit)] = texts
    table.antibodies, table.antigens, rows = map(list, zip(*pairs, strict=True))
    table.labels["label"] = Meaning("affinity", rows)
    table.units["label"] = LABELS[unit]
    if "UNIT" not in header:  # else low numbers are taken for pKd, and this is told
        table.options["label"] = LABELS[unit]
    antigens = pd.DataFrame(ANTIGENS.items(), columns=["name", "sequence"])
    antigens.to_csv(folder / "antigens.csv", index=False)
    table.options |= {"matrix": True}
    table.options["sequences"] = (*table.options.get("sequences", ()), folder / "antigens.csv")
    table.drawn.append(f"label: matrix of {unit} {header}")


def draw(rng, folder, *, like=None):
    """Return a table with its truth; `like` is the form and name of its label."""
    table = Written()
    n = rng.choice([2, 4, 8, 12, 12, 20])
    write_antibodies(rng, table, n, folder)
    if like is None and rng.random() < 0.05:
        write_matrix(rng, table, folder)
    else:
        write_antigens(rng, table, n)
        others = [write_value, write_classes, write_unit_beside, write_rates]
        label = rng.choice([write_affinity] * 12 + others)
        if like is not None:
            write_affinity(rng, table, n, like=like)
        else:
            label(rng, table, n)
        if label is write_affinity and rng.random() < 0.15:
            write_affinity(rng, table, n)  # of another quantity or unit
        write_beside(rng, table, n)
        if rng.random() < 0.2:
            name = rng.choice(["id", "Name", "Unnamed: 0", "index", "#", "No."])
            table.columns[name] = [str(at + 1) for at in range(n)]
    order = [*table.columns]
    rng.shuffle(order)
    table.columns = {name: table.columns[name] for name in order}
    table.options["bad_rows"] = rng.choice(["error", "skip"])
    return table


# ---- files ---------------------------------------------------------------------------------------


def as_given(rng, table, folder):
    """Return the table in memory, with numbers where all cells of a column are such."""
    frame = pd.DataFrame(table.columns, dtype=object)
    if rng.random() < 0.5:
        return frame
    for name in frame:
        numbers = pd.to_numeric(frame[name].replace("", None), errors="coerce")
        if numbers.notna().all() and not frame[name].str.contains("[^0-9.Ee+-]").any():
            frame[name] = numbers
    return frame


def as_text(rng, table, folder):
    """Write a text file with the separators, encodings and titles of several programs."""
    frame = pd.DataFrame(table.columns)
    mark = rng.choice([",", ",", ";", "\t"])
    encoding = rng.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16", "cp1252"])
    path = folder / ("t.tsv" if mark == "\t" else "t.csv")
    text = frame.to_csv(index=rng.random() < 0.15, sep=mark)
    if rng.random() < 0.1:
        units = [re.fullmatch(r"([^()]*) [(\[]([munp]?M)[)\]]", name) for name in frame]
        names = [found[1] if found else name for found, name in zip(units, frame, strict=True)]
        frame.columns = names
        frame.loc[-1] = [found[2] if found else "" for found in units]
        text = frame.sort_index().to_csv(index=False, sep=mark)
    elif rng.random() < 0.1:
        text = f"Table S2. Affinities\n{text}"
    try:
        path.write_bytes(text.encode(encoding))
    except UnicodeEncodeError:
        path.write_text(text, encoding="utf-8")
    table.drawn.append(f"file: {mark!r} {encoding}")
    return path


def as_workbook(rng, table, folder):
    as_given(rng, table, folder).to_excel(folder / "t.xlsx", index=rng.random() < 0.15)
    return folder / "t.xlsx"


def as_parquet(rng, table, folder):
    as_given(rng, table, folder).to_parquet(folder / "t.parquet")
    return folder / "t.parquet"


def as_lines(rng, table, folder):
    frame = as_given(rng, table, folder)  # with less precision, 5.24e-10 is written as 5e-10
    frame.to_json(folder / "t.jsonl", orient="records", lines=True, double_precision=15)
    return folder / "t.jsonl"


FILES = [as_given] * 4 + [as_text] * 4 + [as_workbook, as_parquet, as_lines]


# ---- check ---------------------------------------------------------------------------------------


def meaning_of(labels):
    """Return what each pair that was read has as its label, in the terms of `Meaning`."""
    values = labels.pkd.tolist()
    if labels.quantity.classes:
        return [labels.quantity.classes[int(value)] for value in values]
    return [10**value for value in values] if labels.quantity.is_log else values


def compare(table, labels):
    """Raise AssertionError if a pair has another sequence, value or bound than was written."""
    column = as_found(labels.reading.column)
    names = {as_found(name): name for name in table.labels}
    column = "label" if table.options.get("matrix") else names.get(column, column)
    assert column in table.labels, f"{column!r} was read as {labels.reading.line}"
    truth = table.labels[column]
    quantity = labels.quantity
    kind = "affinity" if quantity.affinity else "classes" if quantity.classes else "value"
    assert kind == truth.quantity, labels.reading.line
    if kind == "value":
        assert truth.better in ("", quantity.better), labels.reading.line
    if kind == "classes":
        better = quantity.classes[-1 if quantity.better == "higher" else 0]
        is_told = len({*truth.rows}) > 1  # one word may be of other pairs
        assert better == spelled(truth.better) or not is_told, labels.reading.line
    left = [*zip(table.antibodies, table.antigens, truth.rows, strict=True)]
    sequences = labels.table
    for a, g, value, side in zip(
        labels.antibody, labels.antigen, meaning_of(labels), labels.censored, strict=True
    ):
        got = (sequences.antibodies.chains[a], sequences.antigens.chains[g])
        wanted = [row for row in left if row[:2] == got]
        assert wanted, f"no row has the sequences {got}"
        fits = [row for row in wanted if row[2] is not None and is_same(row[2], value, side)]
        assert fits, (
            f"read {value} ({side}), written {[row[2] for row in wanted]}: {labels.reading.line}"
        )
        left.remove(fits[0])
    if "affinity_type" in table.options:
        left = [row for row in left if row[2] is not None]  # of another type
    assert table.options["bad_rows"] == "skip" or not left, f"lost rows: {left}"


def spelled(word):
    return word.casefold().removesuffix(".0")


def as_found(name):
    """Return the name of a column without invisible signs at its ends and without its unit.

    `as_text` may have written that into the second line.
    """
    return re.sub(r" [(\[][munp]?M[)\]]$", "", name.strip("\ufeff "))


def is_same(written, value, side):
    if isinstance(value, str):
        return spelled(written[0]) == value
    return written[1] == side and math.isclose(written[0], value, rel_tol=1e-4, abs_tol=2e-3)


def attempts(table):
    """Return the options of a new user, then those with which columns are named."""
    chosen = table.options.get("columns", {})
    sequences = {role: name for role, name in table.roles.items() if role != "mutations"}
    yield table.options
    columns = {**sequences, **chosen}
    yield {**table.options, "columns": columns}
    for name in table.labels:
        if {"pkd", "label"} & {*chosen} and name not in chosen.values():
            continue
        if not {"pkd", "label"} & {*chosen} and not table.options.get("matrix"):
            role = "pkd" if table.labels[name].quantity == "affinity" else "label"
            columns = {**sequences, **chosen, role: name}
        yield {**table.options, "columns": columns}
        if table.units.get(name):
            yield {**table.options, "columns": columns, "label": table.units[name]}


def words_of(message):
    """Return the words of a refusal without names and numbers, to count it."""
    first, *rows = message.splitlines()
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "_", rows[0] if rows else first)
    return re.sub(r"[0-9][0-9.,]*", "0", text.partition(": " if rows else ":")[2])[:90]


def read_and_compare(table, source, *, run=None):
    """Read a table as a new user does, then with its columns named; return what was read.

    None if all that is refused, and the words of the last refusal. With a `run`, which has the
    labels and options of another table, it is read once, as the commands of the run do.
    """
    refused = ""
    for options in [table.options] if run else attempts(table):
        try:
            if run:
                labels = read_as_run(source, *run, antigen=options.get("antigen"))
            else:
                labels = read_labels(source, replicates="keep", **options)
        except AbagError as error:
            refused = words_of(str(error))
            continue
        try:
            compare(table, labels)
        except AssertionError as error:
            error.add_note(f"{table.drawn} {options}\n{table.columns}")
            raise
        return labels, options, refused
    return None, {}, refused


def check_table(seed, number):
    """Check the table of this number, and one that is read as its run does; count the outcomes."""
    rng = random.Random(f"{seed} {number}")
    counts = Counter()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        table = draw(rng, folder)
        labels, options, refused = read_and_compare(table, rng.choice(FILES)(rng, table, folder))
        if labels is None:
            return Counter({"refused": 1, refused: 1})
        counts["read as named" if refused else "read"] += 1
        # of a run with --no-binding, the floor is that of its table
        is_followed = labels.quantity.affinity and not {"matrix", "no_binding"} & {*options}
        if rng.random() < 0.4 and is_followed:
            again = draw(rng, folder, like=rng.choice([None, table.form]))
            again.options["bad_rows"] = options["bad_rows"]
            source = rng.choice(FILES)(rng, again, folder)
            read, _, refused = read_and_compare(again, source, run=(labels, options))
            counts["run: refused" if read is None else "run: read"] += 1
            counts[f"run: {refused}"] += 1
    return counts


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "numbers",
    [range(40), *in_ci(range(40, 200)), pytest.param(range(20_000), marks=pytest.mark.slow)],
)
def test_a_table_is_read_as_it_was_meant_or_refused(numbers):
    counts, failures = many.run(partial(check_table, 1), numbers)
    assert not failures, min(failures.items())[1]
    assert min(counts[outcome] for outcome in ("read", "read as named", "refused")) > 3


if __name__ == "__main__":
    many.main(lambda seed: partial(check_table, seed), __doc__)
