"""Antibodies and antigens of a table, checked, with chains in their places.

N distinct sequences or chains.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import pandas as pd
import pyarrow as pa

from abag.core.errors import TableError
from abag.core.messages import bar, quoted
from abag.embed.sequences.chains import (
    NO_ANTIGEN,
    Chains,
    EmptySequence,
    antigen,
    parse_antibody,
    parse_antigen,
    parse_chain,
)
from abag.embed.sequences.changes import BadCell
from abag.embed.sequences.columns import MissingColumn, quote_names, with_found
from abag.embed.sequences.contents import (
    REGION,
    SHORT,
    antigen_candidates,
    describe_unused,
    is_peptide,
    is_sequence,
    names_as_residues,
    suggest_columns,
)
from abag.embed.sequences.domain_types import (
    HEAVY_TYPE,
    LIGHT_TYPE,
    UNCLEAR_TYPE,
    chain_types,
    cut_to_domains,
    find_types,
    have_constant_domain,
    have_motif,
    place_chains,
)
from abag.embed.sequences.domains import WHOLE_DOMAIN, UnsureDomains
from abag.embed.sequences.flanks import HISTIDINE_TAG, find_leaders, find_tails
from abag.embed.sequences.parsed_column import REASONS, ParsedColumn, parse_column
from abag.embed.sequences.references import NO_REFERENCES, References
from abag.embed.sequences.table_options import ChainPlaces, TableOptions
from abag.embed.sequences.tables import Table
from abag.embed.sequences.variants import parse_variants

# at 0.25 ms per chain, to count what antibodies of unclear types are; --chains auto numbers all
NUMBERED_AT_MOST = 200
SHORT_DOMAIN = 70  # residues below which a chain is no variable domain, whose shortest have 95
# as AIRR has junctions, C...W, and IMGT CDR3: AR...DY
_CDR3 = re.compile("C[AVTSIGQLMHFN][A-Z]{2,36}[WF]|[AVTSI][RKSTNG][A-Z]{1,34}[DG][YVIHPL]")


def parse_antibodies(
    table: Table, options: TableOptions, references: References = NO_REFERENCES
) -> ParsedColumn:
    """Parse the antibodies of a table and bring their chains into place.

    Bad sequences are listed in the result.

    Raises
    ------
    MissingColumn
        If no column holds antibodies, or one holds names.
    TableError
        If a column holds parts of chains, or no text.
    """
    if "antibody" in references.rules:
        return _arranged(parse_variants(table, "antibody", references), table, options)
    if references.parent is not None:
        parent = ParsedColumn.constant(len(table.frame), parse_antibody(references.parent).chains)
        return _arranged(parent, table, options)
    if table.has("antibody"):
        column = parse_column(table, "antibody", parse_antibody, references)
        _refuse_names(column, table, references)
        return _arranged(column, table, options)
    roles = [role for role in ("heavy", "light") if table.has(role)]
    if not roles:
        problem = f"{table.source}: no column for heavy, light or antibody"
        commas = ", or separate columns by commas" if len(table.names) == 1 else ""
        advice = (
            f"Name them with --column heavy=NAME, light=NAME or antibody=NAME{commas}. "
            f"{suggest_columns(table)}{_advise_antigen(table, options)}"
        )
        raise MissingColumn(with_found(problem, table.names, advice))
    if roles == ["light"] and "light" not in options.columns:  # heavy may be in another column
        light = table.column("light")
        problem = f"{table.source}: no column for heavy, only {light!r} for light"
        advice = (
            "Name it with --column heavy=NAME, or, if the antibodies have no heavy chains, the "
            f"other with --column light={shlex.quote(light)}."
        )
        raise MissingColumn(with_found(problem, table.names, advice))
    parsed = {role: parse_column(table, role, parse_chain, references) for role in roles}
    for role, column in parsed.items():
        _refuse_names(column, table, references, role)
    absent = ParsedColumn.constant(len(table.frame), ("",))
    names = quote_names([table.column(role) for role in roles])
    joined = _join(parsed.get("heavy", absent), parsed.get("light", absent), f"column {names}")
    return _arranged(joined, table, options)


def describe_unused_chains(
    column: ParsedColumn, table: Table, options: TableOptions, ignored: Sequence[str]
) -> list[str]:
    """Refuse a table with variable domains in columns that no role uses, as `describe_unused`.

    `column` has its antibodies, and `ignored` are columns that options replace.
    """
    if table.frame.index[0]:  # the first chunk decides
        return []
    chains_of_row = {}
    for row, code in enumerate(column.codes.tolist()):
        if code not in column.bad:
            chains_of_row[row] = column.chains[code]
    others = [name for name in table.frame.columns if str(name) not in ignored]
    return describe_unused(replace(table, frame=table.frame[others]), options, chains_of_row)


def _advise_antigen(table: Table, options: TableOptions) -> str:
    """Say what else is missing, so that it does not take another attempt to learn it."""
    is_chosen = options.antigen is not None or "antigen" in options.columns
    if is_chosen or options.no_antigen or options.matrix:
        return ""
    if not options.proposes_no_antigen or table.has("antigen"):
        return ""
    return (
        " No column is named like an antigen, either: name it with --column antigen=NAME, give one "
        "for all rows with --antigen SEQ, or learn from antibodies alone with --no-antigen."
    )


def _join(heavy: ParsedColumn, light: ParsedColumn, where: str) -> ParsedColumn:
    """Join the chains of each row; a row without any is bad."""
    codes, pairs = pd.factorize(heavy.codes * len(light.chains) + light.codes)
    heavy_N, light_N = np.divmod(pairs, len(light.chains))
    places = [*zip(heavy_N.tolist(), light_N.tolist(), strict=True)]
    chains = [heavy.chains[h] + light.chains[k] for h, k in places]
    bad: dict[int, BadCell] = {}
    is_bad = heavy.is_bad()[heavy_N] | light.is_bad()[light_N]
    for i in np.flatnonzero(is_bad).tolist():
        h, k = places[i]
        bad[i] = heavy.bad.get(h) or light.bad[k]
    msg = f"{where}: no antibody chain; expected at least one. Give a chain, or remove the row."
    no_chain = BadCell("antibody", REASONS[EmptySequence], "", msg, EmptySequence)
    for i, pair in enumerate(chains):
        if not any(pair):
            bad.setdefault(i, no_chain)
    return ParsedColumn(
        codes=codes.astype(np.int64),
        chains=chains,
        replaced=heavy.replaced[heavy_N] + light.replaced[light_N],
        forms=[""] * len(chains),
        bad=bad,
    )


def parse_antigens(
    table: Table, options: TableOptions, references: References = NO_REFERENCES
) -> ParsedColumn:
    """Parse the antigens of a table, unless the options have one for all rows, or say none.

    Bad sequences are listed in the result.

    Raises
    ------
    MissingColumn
        If no column holds antigens, or it holds names.
    TableError
        If the column holds no text.
    """
    if options.no_antigen:
        return ParsedColumn.constant(len(table.frame), NO_ANTIGEN)
    if "antigen" in references.rules:
        return _with_antigen_notes(parse_variants(table, "antigen", references))
    if options.antigen is not None:
        text = options.antigen if references.antigen is None else references.antigen
        return ParsedColumn.constant(len(table.frame), antigen(text))
    if not table.has("antigen"):
        advice = ", or give one antigen for all rows with --antigen SEQ"
        if options.proposes_no_antigen:
            advice += ", or learn from antibodies alone with --no-antigen"
        candidates = antigen_candidates(table)
        if candidates:
            advice += f". {quote_names(candidates)} may hold it"
        table.column("antigen", advice)
    column = parse_column(table, "antigen", parse_antigen, references)
    _refuse_antigen_names(column, table, options, references)
    return _with_antigen_notes(column)


def _refuse_antigen_names(
    column: ParsedColumn, table: Table, options: TableOptions, references: References
) -> None:
    """Refuse a table whose column of antigens holds names."""
    if table.frame.index[0] or "antigen" in references.by_name:
        return
    names = column.bad_texts
    distinct = len(column.chains) - 1  # less that of empty cells
    # what is longer, or ends in a stop codon, is a sequence with a fault
    names = [text for text in names if not (is_sequence(text) or is_peptide(text))]
    if 2 * len(names) <= distinct:  # some names are valid residues, such as VEGF
        names = names_as_residues(table, table.column("antigen"))
    if column.longest < SHORT and names:
        msg = (
            f"{table.source}: column {table.column('antigen')!r} holds names, such as "
            f"{quoted(names[0])}, not sequences. If all rows have the same antigen, give its "
            "sequence with --antigen SEQ; else add a column of sequences and name it with "
            "--column antigen=NAME, or give a FASTA file or table of names and sequences with "
            "--sequences FILE."
        )
        if options.proposes_no_antigen:
            msg += " If the label does not depend on it, learn from antibodies alone: --no-antigen."
        raise MissingColumn(msg)


def _with_antigen_notes(column: ParsedColumn) -> ParsedColumn:
    """Mark antigens that are short or have a tag."""
    column.mark("short antigen", _with_short_chain(column.chains))
    joined = pa.array(map("|".join, column.chains), pa.large_string())
    is_tagged = have_motif(HISTIDINE_TAG, joined)
    column.mark("tagged antigen", np.flatnonzero(is_tagged).tolist())
    return column


def _refuse_names(
    column: ParsedColumn, table: Table, references: References, role: str = "antibody"
) -> None:
    """Refuse a table whose column of antibodies, or of their chains, holds names."""
    if table.frame.index[0] or role in references.by_name:
        return
    names = names_as_residues(table, table.column(role))
    if not names:
        names = column.bad_texts if role == "antibody" else []
        if len(names) < 2 or column.longest >= SHORT_DOMAIN:
            return
    if max(map(len, names)) < SHORT:
        where = f"{table.source}: column {table.column(role)!r}"
        msg = (
            f"{where} holds names, such as {quoted(names[0])}, not sequences. Give a FASTA file "
            "or table of names and sequences with --sequences FILE, or name the columns of "
            "sequences with --column heavy=NAME and --column light=NAME."
        )
        raise MissingColumn(msg)


def _arranged(column: ParsedColumn, table: Table, options: TableOptions) -> ParsedColumn:
    """Put chains in their places and cut them, if asked to, and mark what is unusual."""
    _place(column, table, options.chains)
    chains = column.chains
    forms = column.forms
    if options.antibody_region == "fv" or table.reader.cut:
        for i in bar(iterable=column.good, desc="cutting chains", unit=" texts", delay=2):
            chains[i], words = cut_to_domains(chains[i])
            forms[i] = "+".join(filter(None, [forms[i], *words]))
    else:
        _mark_flanks(column)
    if table.has("heavy"):
        without_heavy = [i for i, (heavy, _) in enumerate(chains) if not heavy]
        column.mark("no heavy", without_heavy)
    column.mark("short antibody", _with_short_chain(chains, SHORT_DOMAIN))
    _refuse_parts(column, table)
    return column


def _mark_flanks(column: ParsedColumn) -> None:
    """Mark the antibodies that have residues beside their variable domains."""
    heavies, lights = zip(*column.chains, strict=True)
    constant_heavy = have_constant_domain(heavies)
    constant_light = have_constant_domain(lights)
    column.mark("constant", np.flatnonzero(constant_heavy | constant_light).tolist())
    leaders = find_leaders(heavies, "heavy") | find_leaders(lights, "light")
    column.mark_residues("leader", leaders)
    for texts, is_constant in ((heavies, constant_heavy), (lights, constant_light)):
        tails = find_tails(texts)
        unusual = {i: tail for i, tail in tails.items() if not is_constant[i]}
        column.mark_residues("tail", unusual)


def _refuse_parts(column: ParsedColumn, table: Table) -> None:
    """Refuse a table whose heavy or light chains are all CDRs or other parts of a chain."""
    if table.frame.index[0]:  # the first chunk decides
        return
    good = [column.chains[i] for i in column.good]
    for role, place in (("heavy", 0), ("light", 1)):
        texts = [*dict.fromkeys(chains[place] for chains in good if chains[place])]
        if not texts or max(map(len, texts)) >= SHORT_DOMAIN:
            continue
        name = table.columns.get("antibody") or table.columns.get(role, role)
        alike = len(texts) > 1 and all(map(_CDR3.fullmatch, texts))
        if alike or REGION.search(name):
            msg = (
                f"{table.source}: column {name!r} holds parts of {role} chains, such as "
                f"{quoted(texts[0])}; expected whole variable domains, of about 110 to 130 "
                f"residues. Name the column of these with --column {role}=NAME."
            )
            raise TableError(msg)


def _place(column: ParsedColumn, table: Table, places: ChainPlaces) -> None:
    """Find misplaced chains, of the unclear ones in a sample, and put them right if asked to."""
    chains = column.chains
    forms = column.forms
    heavy_N, light_N = map(find_types, zip(*chains, strict=True))
    is_unclear = (heavy_N == UNCLEAR_TYPE) | (light_N == UNCLEAR_TYPE)
    # strings, which have a form, were looked at when they were split
    is_open = np.array([not form for form in forms]) & ~column.is_bad()
    unclear = np.flatnonzero(is_open & is_unclear)
    if places != "auto":
        sample = min(len(unclear), NUMBERED_AT_MOST) if table.frame.index[0] == 0 else 0
        chosen = np.linspace(0, len(unclear) - 1, sample).astype(int)
        column.mark("unclear", np.delete(unclear, chosen).tolist())
        unclear = unclear[chosen]
    is_misplaced = (heavy_N == LIGHT_TYPE) | (light_N == HEAVY_TYPE)
    unusual = np.flatnonzero(is_open & ~is_unclear & is_misplaced)
    todo = np.union1d(unclear, unusual).tolist()
    for i in bar(iterable=todo, desc="looking at chains", unit=" texts", delay=2):
        heavy, light = chains[i]
        types = (chain_types(heavy, heavy_N[i]), chain_types(light, light_N[i]))
        # told before the chains are placed: `types` keeps the order of the columns
        is_unknown = [
            len(text) >= WHOLE_DOMAIN and not domains
            for text, domains in zip(chains[i], types, strict=True)
        ]
        try:
            chains[i], forms[i] = place_chains(chains[i], types, places)
            if any(is_unknown):
                forms[i] += "+unknown chain"
        except UnsureDomains as error:
            names = [table.columns[role] for role in ("heavy", "light") if role in table.columns]
            msg = f"column {quote_names(names)}: {error}"
            text = "|".join(chains[i])
            reason = REASONS[UnsureDomains]
            column.bad[i] = BadCell("antibody", reason, text, msg, UnsureDomains)


def _with_short_chain(sequences: Sequence[Chains], least: int = SHORT) -> list[int]:
    """Find the sequences with a chain of fewer than `least` residues, but not empty."""
    lengths = np.fromiter(map(len, chain.from_iterable(sequences)), np.int64)
    chain_counts = [*map(len, sequences)]
    sequence_of_chain = np.repeat(np.arange(len(sequences)), chain_counts)
    is_short = (lengths > 0) & (lengths < least)
    short: list[int] = np.unique(sequence_of_chain[is_short]).tolist()
    return short
