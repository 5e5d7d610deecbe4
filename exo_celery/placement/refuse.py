"""Why no ring is left: which rule emptied the list, and by how much."""

from collections.abc import Callable

from exo_celery.errors import PlacementError
from exo_celery.placement import wording
from exo_celery.placement.graph import members
from exo_celery.placement.rings import Answer
from exo_celery.placement.shortage import shortage
from exo_celery.placement.survey import Reason, Survey, divides


def check_request(survey: Survey) -> None:
    """Refuse what no cluster could give, or this one not by its nodes' ids and number.

    Raises:
        PlacementError: with the code of the first thing that is wrong.
    """
    for check in (check_required, check_sizes, check_tensor, check_count):
        check(survey)


def check_required(survey: Survey) -> None:
    """Refuse required nodes that are unknown or excluded."""
    request = survey.question.request
    known = {node.id for node in survey.question.nodes}
    if unknown := sorted(set(request.required_nodes) - known):
        raise PlacementError(
            f"required nodes {wording.names(unknown)} are not among the {wording.count(len(known), 'node')} here"
            f" ({wording.names(sorted(known)) or 'none'}): start them, or do not require them",
            code="required_node_unknown",
            unknown_nodes=unknown[: wording.NAMED_AT_MOST],
            known_nodes=len(known),
        )
    if both := sorted(set(request.required_nodes) & set(request.excluded_nodes)):
        raise PlacementError(
            f"nodes {wording.names(both)} are both required and excluded: take them out of one of the two lists",
            code="required_node_excluded",
            nodes=both[: wording.NAMED_AT_MOST],
        )


def check_sizes(survey: Survey) -> None:
    """Refuse sizes that contradict each other, or that the model has too few layers for."""
    request, layers, smallest = survey.question.request, survey.demand.layers, survey.smallest
    if request.max_nodes is not None and request.max_nodes < smallest:
        raise PlacementError(
            f"at most {wording.count(request.max_nodes, 'node')} were asked for, but min_nodes and required_nodes need"
            f" {smallest}: raise max_nodes",
            code="size_range",
            min_nodes=smallest,
            max_nodes=request.max_nodes,
        )
    if smallest > layers:
        raise PlacementError(
            f"a ring of at least {smallest} nodes was asked for, but {survey.question.card.id} has only"
            f" {wording.count(layers, 'layer')} and each node holds at least one: ask for at most {layers} nodes",
            code="too_few_layers",
            min_nodes=smallest,
            n_layers=layers,
        )


def check_tensor(survey: Survey) -> None:
    """Refuse tensor sharding of a model that does not support it, at any size."""
    if survey.tensor and not survey.question.card.supports_tensor:
        raise PlacementError(
            f"tensor sharding was asked for, but {survey.question.card.id} does not support it: ask for pipeline",
            code="tensor_unsupported",
        )


def check_count(survey: Survey) -> None:
    """Refuse more nodes than there are."""
    smallest = survey.smallest
    nodes = len(survey.question.nodes)
    excluded = sum(reason is Reason.EXCLUDED for reason in survey.reasons)
    if nodes - excluded < smallest:
        raise PlacementError(
            f"a ring of at least {wording.count(smallest, 'node')} was asked for, but there are {nodes}"
            f" and {excluded} of them excluded: start more nodes or ask for fewer",
            code="too_few_nodes",
            min_nodes=smallest,
            nodes=nodes,
            excluded=excluded,
        )


def refusal(survey: Survey, answer: Answer) -> PlacementError:
    """Return the error of the first rule that leaves no ring, asking the rules in their order.

    Rings are looked for with ever fewer nodes, first whatever they hold; the need of memory comes last.
    """
    for stage in (by_label, by_links, by_report, by_backend, by_rdma, by_division):
        if error := stage(survey):
            return error
    if not answer.exact:
        return PlacementError(
            f"no ring that holds {survey.question.card.id} was found within the bound of {answer.steps} steps, though"
            " one may exist: link the nodes more densely, or require some of them",
            code="no_ring_within_bound",
            steps=answer.steps,
        )
    return shortage(survey)


def lost_to(survey: Survey, reason: Reason) -> tuple[list[str], list[str]]:
    """Return the nodes that a rule left out, and the required ones among them."""
    lost = [node.id for node, found in zip(survey.question.nodes, survey.reasons, strict=True) if found is reason]
    return lost, [name for name in lost if name in survey.question.request.required_nodes]


def by_node_rule(
    survey: Survey, reason: Reason, following: Reason, code: str, sentence: Callable[[], str]
) -> PlacementError | None:
    """Return an error if the nodes that one rule left out were needed for a ring."""
    lost, required = lost_to(survey, reason)
    rdma = survey.rdma and reason is Reason.RDMA_DISABLED
    if not lost or survey.may_hold_ring(survey.before(following), rdma=rdma):
        return None
    named = f"required nodes {wording.names(required)}" if required else f"nodes {wording.names(lost)}"
    return PlacementError(
        f"without {named} there is no ring of the size asked for: {sentence()}",
        code=code,
        nodes=lost[: wording.NAMED_AT_MOST],
        count=len(lost),
    )


def by_label(survey: Survey) -> PlacementError | None:
    """Ask whether the labels left enough nodes."""
    labels = ", ".join(survey.question.request.labels)
    return by_node_rule(
        survey,
        Reason.LABEL_MISSING,
        Reason.NO_REPORT,
        "label_missing",
        lambda: f"they lack a label of {labels}; label them or ask for fewer labels",
    )


def by_links(survey: Survey) -> PlacementError | None:
    """Ask whether there is any ring over two-way links."""
    nodes = survey.before(Reason.NO_REPORT)
    if survey.may_hold_ring(nodes):
        return None
    request = survey.question.request
    links = sum((survey.question.links.two_way[i] & nodes).bit_count() for i in members(nodes)) // 2
    what = f"a ring of at least {wording.count(survey.smallest, 'node')}"
    with_them = f" with {wording.names(sorted(request.required_nodes))}" if request.required_nodes else ""
    return PlacementError(
        f"{what}{with_them} was asked for, but the {wording.count(links, 'two-way link')} between"
        f" {wording.count(nodes.bit_count(), 'node')} close no such ring: link the nodes both ways, or ask for fewer",
        code="no_two_way_ring",
        min_nodes=survey.smallest,
        two_way_links=links,
        nodes=nodes.bit_count(),
    )


def by_report(survey: Survey) -> PlacementError | None:
    """Ask whether enough nodes have told their memory."""
    return by_node_rule(
        survey,
        Reason.NO_REPORT,
        Reason.NO_SHARED_BACKEND,
        "no_report",
        lambda: "they have not reported their memory yet; wait for their report or look at their workers",
    )


def by_backend(survey: Survey) -> PlacementError | None:
    """Ask whether enough nodes share a backend with engine and model."""
    card, request = survey.question.card, survey.question.request
    return by_node_rule(
        survey,
        Reason.NO_SHARED_BACKEND,
        Reason.RDMA_DISABLED,
        "no_shared_backend",
        lambda: f"they share no backend with {request.instance_meta} and {card.id} ({', '.join(card.backends)})",
    )


def by_rdma(survey: Survey) -> PlacementError | None:
    """Ask whether enough nodes and links have RDMA, where the engine needs it."""
    if not survey.rdma:
        return None
    sentence = "MlxJaccl needs RDMA enabled on each node and on every link inside the ring"
    if error := by_node_rule(
        survey,
        Reason.RDMA_DISABLED,
        Reason.NO_ROOM,
        "rdma_missing",
        lambda: f"{sentence}; enable it or ask for MlxRing",
    ):
        return error
    nodes = survey.before(Reason.NO_ROOM)
    if survey.may_hold_ring(nodes, rdma=True):
        return None
    return PlacementError(
        f"no ring of the size asked for has RDMA on every link between the {wording.count(nodes.bit_count(), 'node')}"
        f" left: {sentence}; connect them or ask for MlxRing",
        code="rdma_missing",
        nodes=[survey.question.nodes[i].id for i in members(nodes)][: wording.NAMED_AT_MOST],
        count=nodes.bit_count(),
    )


def by_division(survey: Survey) -> PlacementError | None:
    """Ask whether the model can be cut into any of the sizes that rings have."""
    if not survey.tensor or survey.sizes:
        return None
    card = survey.question.card
    possible = [size for size in range(1, card.hidden_size + 1) if size <= 64 and divides(size, survey.question)]
    return PlacementError(
        f"tensor sharding over at least {wording.count(survey.smallest, 'node')} was asked for, but hidden size"
        f" {card.hidden_size}, {card.num_key_value_heads} KV heads and the other parts of a layer divide by none of the"
        f" sizes that fit here; they do by {', '.join(map(str, possible))}: ask for one of these or for pipeline",
        code="tensor_not_divisible",
        hidden_size=card.hidden_size,
        num_key_value_heads=card.num_key_value_heads,
        sizes=possible,
    )
