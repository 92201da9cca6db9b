"""Proximal policy optimisation of a walk to the middle of a line. Actions are drawn on the CPU."""

import torch
from torch import nn
from torch.distributions import Categorical


def play(position: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The next positions of the walkers, and their rewards."""
    position = (position + 0.2 * (action.float() * 2 - 1)[:, None]).clamp(-1, 1)
    return position, -position[:, 0].abs()


def returns_of(rewards: torch.Tensor, discount: float = 0.9) -> torch.Tensor:
    total, reversed_returns = torch.zeros_like(rewards[0]), []
    for reward in rewards.flip(0):
        total = reward + discount * total
        reversed_returns.append(total)
    return torch.stack(reversed_returns[::-1])


def main(device: str) -> list[float]:
    """The losses of the updates, and at last the mean reward."""
    torch.manual_seed(1)
    policy = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2)).to(device)
    value = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=1e-2)
    losses, reward = [], torch.zeros(1)
    for _ in range(4):
        position, states, actions, rewards = torch.rand(16, 1) * 2 - 1, [], [], []
        with torch.no_grad():
            for _ in range(8):
                action = Categorical(logits=policy(position.to(device)).cpu()).sample()
                states.append(position)
                actions.append(action)
                position, reward = play(position, action)
                rewards.append(reward)
        state, action = torch.cat(states).to(device), torch.cat(actions).to(device)
        target = returns_of(torch.stack(rewards)).flatten().to(device)
        with torch.no_grad():
            old = Categorical(logits=policy(state)).log_prob(action)
            advantage = target - value(state).squeeze(-1)
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for _ in range(4):
            distribution = Categorical(logits=policy(state))
            ratio = torch.exp(distribution.log_prob(action) - old)
            gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            error = nn.functional.mse_loss(value(state).squeeze(-1), target)
            loss = -gain + 0.5 * error - 0.01 * distribution.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.item())
    return [*losses, reward.mean().item()]
